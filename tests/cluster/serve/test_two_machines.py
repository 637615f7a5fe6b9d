"""A laptop without torch trains a model on a server that is killed and started again, twice."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ludus.runs.store import RunStore
from tests.cluster.serve.environment import base_environment

HERE = Path(__file__).parent
KEY = "the-key-of-two-machines"
SMALL = (
    "model.dtype=float32",
    "model.lora={rank: 4, alpha: 8.0}",
    "engine.kv_bytes=4194304",
    "gconfig.max_new_tokens=8",
    "trainer.optimizer.lr=0.01",
)


@contextmanager
def server(folder: Path, port: int) -> Iterator[subprocess.Popen[str]]:
    """`ludus serve` as a process, once it takes requests; killed when the block ends, if not before."""
    options = ("--port", str(port), "--folder", str(folder))
    process = subprocess.Popen(
        [sys.executable, "-m", "ludus", "serve", *options, *SMALL],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "LUDUS_API_KEY": KEY},
    )
    try:
        assert process.stdout is not None
        assert re.match(f"serving at http://127.0.0.1:{port} from ", process.stdout.readline())
        yield process
    finally:
        process.kill()
        process.communicate()


class Laptop:
    """The user's script, in an environment and a folder of its own."""

    def __init__(self, folder: Path, port: int, base_model: Path, num_steps: int) -> None:
        python = base_environment(folder / "environment")
        others = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        arguments = (f"http://127.0.0.1:{port}", str(base_model), str(num_steps))
        self.process = subprocess.Popen(
            [python, str(HERE / "laptop.py"), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            env={**others, "LUDUS_API_KEY": KEY},
        )

    def told(self, key: str) -> dict[str, Any]:
        """The next line with this key; those before it are let pass."""
        assert self.process.stdout is not None and self.process.stderr is not None
        while line := self.process.stdout.readline():
            facts = dict(json.loads(line))
            if key in facts:
                return facts
        raise AssertionError(self.process.stderr.read())

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()


@contextmanager
def laptop(*arguments: Any) -> Iterator[Laptop]:
    one = Laptop(*arguments)
    try:
        yield one
    finally:
        one.process.kill()
        one.process.communicate()


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@pytest.mark.timeout(300)
def test_a_laptop_trains_on_a_server_that_is_killed(tiny_model_folder: Path, tmp_path: Path, port: int) -> None:
    """Killed between rollouts and training, and in the middle of a step: three steps, each taken once, every sampled
    token of the trajectories accounted for; the laptop has no torch, and nothing but its base install."""
    folder = tmp_path / "server"
    (tmp_path / "laptop").mkdir()
    with laptop(tmp_path / "laptop", port, tiny_model_folder, 3) as client:
        assert client.told("has") == {"has": []}
        with server(folder, port) as first:
            turns = client.told("gathered")["turns"]
            assert [len(each) for each in turns] == [2] * 6
            first.kill()
            first.wait()
        client.go_on()
        with server(folder, port) as second:
            trained = client.told("step")
            assert trained["step"] == 1 and trained["metrics"]["ledger/trained"] > 0
            client.told("gathered")
            client.go_on()
            client.told("stage")
            second.kill()
            second.wait()
        with server(folder, port):
            assert client.told("step")["step"] == 2
            client.told("gathered")
            client.go_on()
            third = client.told("step")
            assert third["step"] == 3 and Path(third["checkpoint"]).is_dir()
            assert client.told("done") == {"done": 3, "modules": []}
    with RunStore.open(folder / "models" / "mail" / "models" / "agent-001") as store:
        found = {turn.id for episode in store.episodes() for turn in episode.session.turns}
    assert {turn for each in turns for turn in each} <= found
    history = (tmp_path / "laptop" / "runs" / "mail" / "models" / "agent-001" / "history.jsonl").read_text()
    assert [json.loads(line)["step"] for line in history.splitlines()] == [1, 2, 3]
