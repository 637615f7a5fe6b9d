"""A server that is killed with `kill -9` at the worst moments: every step is taken once, every client notified."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ludus.compat.art.backends import TrainProgress
from ludus.compat.art.group import TrajectoryGroup
from ludus.compat.art.server_backend import ServerBackend
from ludus.compat.art.trajectory import Trajectory
from tests.cluster.serve.scripted import KEY
from tests.cluster.serve.specs import Model


@contextmanager
def server(folder: Path, port: int) -> Iterator[subprocess.Popen[str]]:
    """A server that takes requests; killed when the block ends, if not before."""
    command = [sys.executable, "-m", "tests.cluster.serve.killable", str(folder), str(port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "serving\n"
        yield process
    finally:
        process.kill()
        process.communicate()


class Client:
    """Trains one step on a thread of its own, and notes what it is sent."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.stages: list[str] = []
        self.has_stage = threading.Condition()
        self.results: list[Any] = []
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()))
        self._thread.start()

    async def _main(self) -> None:
        backend = ServerBackend(self._url, KEY, patience_s=30)
        await backend.register(Model())
        groups = [TrajectoryGroup([Trajectory(reward=1.0)])]
        self.results.append(await backend.train(Model(), groups, on_progress=self._note))

    def _note(self, progress: TrainProgress) -> None:
        with self.has_stage:
            self.stages.append(progress.stage)
            self.has_stage.notify_all()

    def wait_for(self, stage: str) -> None:
        with self.has_stage:
            assert self.has_stage.wait_for(lambda: stage in self.stages, timeout=20)

    def result(self) -> Any:
        self._thread.join(timeout=30)
        [result] = self.results
        return result


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@pytest.mark.parametrize("moment", ["batch", "checkpoint"])
def test_a_step_is_taken_once_whenever_the_server_is_killed(tmp_path: Path, port: int, moment: str) -> None:
    """Killed before the step was on disk, or after: one client, waiting all the time, and one step."""
    if moment == "checkpoint":
        (tmp_path / "go-before").touch()
    with server(tmp_path, port) as first:
        client = Client(f"http://127.0.0.1:{port}")
        client.wait_for(moment)
        first.kill()
        first.wait()
    for name in ("go-before", "go-after"):
        (tmp_path / name).touch()
    with server(tmp_path, port):
        assert client.result().step == 1
    assert len(list(tmp_path.glob("step-*"))) == 1
    # What was told before the server was killed is not told again.
    assert client.stages == (["batch", "batch", "checkpoint"] if moment == "batch" else ["batch", "checkpoint"])
