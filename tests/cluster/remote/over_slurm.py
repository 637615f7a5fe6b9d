"""Servers launched as jobs of a real Slurm: that of SLURM_CONF, or one node that `make test-slurm` sets up."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ludus.cluster.remote.base import EndedError
from ludus.compat.art.group import TrajectoryGroup
from ludus.compat.art.server_backend import ServerBackend
from ludus.compat.art.trajectory import Trajectory
from tests.cluster.real_slurm import slurm
from tests.cluster.serve.specs import Model

__all__ = ["slurm"]  # a fixture

GROUPS = [TrajectoryGroup([Trajectory(reward=1.0)])]


@pytest.fixture(autouse=True)
def cluster(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "SLURM_CONF" not in os.environ:
        for name, value in request.getfixturevalue("slurm").items():
            monkeypatch.setenv(name, value)


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
