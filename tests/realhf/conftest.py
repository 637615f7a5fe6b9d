"""Agents of the guide are played as queue agents are."""

from tests.agents.queues.conftest import play, text

__all__ = ["play", "text"]
