"""Workflows are played as other agents are."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from ludus.compat.config import Config
from tests.rollout.conftest import make_runner as make_plain_runner
from tests.rollout.conftest import play, task

__all__ = ["make_plain_runner", "make_runner", "play", "task"]


@pytest.fixture
def make_runner(make_plain_runner: Callable[..., Any]) -> Callable[..., Any]:
    """A runner that knows workflows by their method."""
    return partial(make_plain_runner, kinds=Config.agent_kinds)
