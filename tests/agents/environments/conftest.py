"""Environments are played as queue agents play them."""

from tests.agents.queues.conftest import play, text

__all__ = ["play", "text"]
