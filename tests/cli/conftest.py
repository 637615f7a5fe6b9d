"""The command line run in this process, and the files that its commands are given."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ludus.cli.app import run

AGENT = """
import asyncio
import os
import signal


class Agent:
    async def run(self, data, *, base_url, api_key, http_client, **extra_kwargs):
        messages = [{"role": "user", "content": data["question"]}]
        rewards = {}
        for _ in range(2):
            body = {"messages": messages, "max_tokens": 6}
            response = await http_client.post(
                base_url + "/chat/completions", json=body, headers={"authorization": "Bearer " + api_key}
            )
            answer = response.json()
            text = answer["choices"][0]["message"]["content"] or ""
            rewards[answer["id"]] = len(set(text)) / 10
            messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "higher"}]
        return rewards, {"success": 1.0}


async def fails(data, **extra_kwargs):
    raise KeyError("no such question")


async def asks(data, *, base_url, api_key, http_client, **extra_kwargs):
    body = {"messages": [{"role": "user", "content": data["question"]}], "max_tokens": 2}
    headers = {"authorization": "Bearer " + api_key}
    response = await http_client.post(base_url + "/chat/completions", json=body, headers=headers)
    response.read()
    if response.status_code != 200:
        raise RuntimeError(response.text)
    return 1.0


async def ends_differently(data, **injected):
    await asks(data, **injected)
    if data["question"] == "Guess 0.":
        raise KeyError("no such question")
    return None if data["question"] == "Guess 1." else 1.0


async def hangs_on_the_first(data, **injected):
    if data["question"] == "Guess 0.":
        await asyncio.Event().wait()
    return await asks(data, **injected)


async def talks_on(data, **injected):
    for _ in range(4):
        await asks(data, **injected)


async def is_interrupted(data, **injected):
    await asks(data, **injected)
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.Event().wait()
"""


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def last(self) -> str:
        return self.out.rstrip().splitlines()[-1]


@pytest.fixture
def ludus(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Ended]]:
    """`ludus('train', 'run.yaml')` in this process; the loggers are as before afterwards."""
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("TERM", "dumb")
    ours = logging.getLogger("ludus")
    before = (ours.handlers, ours.propagate, ours.level)

    def call(*arguments: object) -> Ended:
        capsys.readouterr()
        code = run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Ended(code, captured.out, captured.err)

    yield call
    ours.handlers, ours.propagate = before[0], before[1]
    ours.setLevel(before[2])


@pytest.fixture
def agent_file(tmp_path: Path) -> Path:
    """A user's own agent, in a folder that Ludus knows nothing of."""
    path = tmp_path / "elsewhere" / "my_agent.py"
    path.parent.mkdir()
    path.write_text(AGENT)
    return path


@pytest.fixture
def rows_file(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"question": f"Guess {number}."}) + "\n" for number in range(4)))
    return path


@pytest.fixture
def run_yaml(tmp_path: Path, tiny_model_folder: Path, agent_file: Path, rows_file: Path) -> Path:
    """A run of two small steps with an evaluation before and after."""
    path = tmp_path / "run.yaml"
    config = {
        "name": "small",
        "run_root": str(tmp_path / "runs"),
        "model": {"path": str(tiny_model_folder), "dtype": "float32"},
        "workflow": f"{agent_file}:Agent",
        "train_dataset": {"path": str(rows_file), "batch_size": 2},
        "valid_dataset": {"path": str(rows_file), "max_rows": 2},
        "gconfig": {"n_samples": 2},
        "eval": {"before": True, "after": True},
        "total_train_steps": 2,
    }
    path.write_text(json.dumps(config))  # JSON is YAML
    return path
