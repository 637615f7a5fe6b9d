"""Servers launched as jobs of a real Slurm, whose commands are here."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ludus.agents.trajectory import Trajectory, TrajectoryGroup
from ludus.api.backends.server import ServerBackend
from ludus.launch.remote.base import EndedError
from tests.serve.specs import Model

GROUPS = [TrajectoryGroup([Trajectory(reward=1.0)])]


def queue() -> list[str]:
    """Jobs that Slurm has not done with."""
    asked = subprocess.run(
        ["squeue", "--noheader", "--name", "ludus-serve"], capture_output=True, text=True, check=True
    )
    return asked.stdout.splitlines()


@pytest.mark.timeout(300)
def test_a_model_is_trained_in_a_job(options: dict[str, Any]) -> None:
    """Joined by who comes second, gone from the queue when its client is done."""
    folder = Path(options["folder"])
    lines: list[str] = []

    async def main() -> None:
        async with await ServerBackend.launch("slurm", on_line=lines.append, **options) as backend:
            await backend.register(Model())
            for name in ("go-before", "go-after"):
                (folder / name).touch()
            assert (await backend.train(Model(), GROUPS)).step == 1
            joined = await ServerBackend.launch("slurm", **options)
            assert repr(joined) == repr(backend)
            assert len(queue()) == 1

    asyncio.run(main())
    assert any(line.startswith("job ") and "is RUNNING" in line for line in lines)
    assert queue() == []


@pytest.mark.timeout(300)
def test_a_job_that_fails_says_why(options: dict[str, Any]) -> None:
    """With Slurm's words and its own."""

    async def main() -> None:
        await ServerBackend.launch("slurm", **options, overrides=("fail=true",))

    with pytest.raises(EndedError, match=r"ended before it served (.|\n)*no accelerator"):
        asyncio.run(main())
