"""Servers launched by tests: what they are launched with, and none of them left when a test ends."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ludus.cluster.remote import LaunchSettings, server
from ludus.cluster.remote.process import ProcessTarget
from ludus.cluster.remote.shell import Here

ROOT = Path(__file__).parents[3]
MakeSettings = Callable[..., LaunchSettings]


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """These servers start within a second or two; pauses for those that take minutes would be most of it."""
    monkeypatch.setattr(server, "LONGEST_POLL_S", 0.2)


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    """Of a server whose work is scripted, in a folder of its own."""
    return {
        "folder": str(tmp_path / "the server"),
        "workdir": str(ROOT),
        "command": f"{sys.executable} -m tests.cluster.remote.serve",
        "idle_s": 60.0,
        "start_timeout_s": 60.0,
    }


@pytest.fixture
def settings(options: dict[str, Any]) -> Iterator[MakeSettings]:
    """Such settings, with changes."""
    yield lambda **changes: LaunchSettings(**(options | changes))
    ProcessTarget(Here(), LaunchSettings(**options)).stop()
