"""`ludus export`: what a run recorded, for other tools."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from ludus.runs.store import RunStore
from ludus.types import Episode, Message, Node, Outcome, Sampled, Sampling, SessionRecord, Turn


def episode(number: int) -> Episode:
    turn = Turn(
        *(f"chatcmpl-{number}", 1, None, None, None, (Message("user", "go"),), Message("assistant", "x")),
        *(Sampled((5, 6), (-0.5, -0.25), (0, 0), "stop"), Sampling()),
    )
    nodes = (Node(None, (1, 2, 3)), Node(0, (5, 6), turn.id))
    return Episode(f"s{number}", "t", "g", SessionRecord(f"s{number}", nodes, (turn,)), {turn.id: 1.0}, Outcome("ok"))


def test_both_formats(tmp_path: Path, ludus: Callable[..., Any]) -> None:
    """A file beside the run, or where it is asked for, with every token, mask and reward."""
    with RunStore.create(tmp_path, "run", "") as store:
        for number in range(3):
            store.add_episode(episode(number))
    ended = ludus("export", tmp_path / "run")
    assert (ended.code, ended.out.strip()) == (0, f"{tmp_path / 'run' / 'export.jsonl'}: 3 rows")
    rows = [json.loads(line) for line in (tmp_path / "run" / "export.jsonl").read_text().splitlines()]
    assert [row["loss_mask"] for row in rows] == [[0, 0, 0, 1, 1]] * 3
    out = tmp_path / "rows.parquet"
    assert ludus("export", tmp_path / "run", "--format", "parquet", "--style", "concat", "--out", out).code == 0
    assert pq.read_table(out).column("rewards").to_pylist() == [[1.0]] * 3


def test_what_ended_badly_is_said_beside_the_rows(tmp_path: Path, ludus: Callable[..., Any]) -> None:
    """How many of each kind, on the console and in a file with the first traceback."""
    outcomes = [Outcome("ok"), Outcome("failed", "Traceback\n  go()\nKeyError: 1"), Outcome("failed", "KeyError: 2")]
    with RunStore.create(tmp_path, "run", "") as store:
        for number, outcome in enumerate([*outcomes, Outcome("timeout", "no request for 60 s")]):
            store.add_episode(replace(episode(number), outcome=outcome))
    beside = tmp_path / "run" / "export.failures.jsonl"
    said = ludus("export", tmp_path / "run").out.splitlines()
    assert said[1:4] == [
        "3 of 4 episodes ended badly:",
        "  2 x failed: KeyError: 1",
        "  1 x timeout: no request for 60 s",
    ]
    assert "each with the first traceback" in " ".join(said[4:])
    first, _ = map(json.loads, beside.read_text().splitlines())
    assert (first["count"], first["trace"]) == (2, "Traceback\n  go()\nKeyError: 1")


def test_a_folder_that_is_no_run(tmp_path: Path, ludus: Callable[..., Any]) -> None:
    """Said, with exit code 2."""
    ended = ludus("export", tmp_path)
    assert ended.code == 2 and "is not the folder of a run" in " ".join(ended.err.split())


def test_demonstrations_are_what_was_chosen(tmp_path: Path, ludus: Callable[..., Any]) -> None:
    """Prompt and completion of each; where nothing was chosen it is said what to do."""
    RunStore.create(tmp_path, "run", "").close()
    refused = ludus("export", tmp_path / "run", "--demonstrations")
    assert refused.code == 2 and "ludus watch" in refused.err
    with RunStore.create(tmp_path / "run", "branches", "") as store:
        store.add_episode(episode(1))
    (tmp_path / "run" / "branches" / "chosen.json").write_text('["s1", "gone"]')
    ended = ludus("export", tmp_path / "run", "--demonstrations")
    path = tmp_path / "run" / "demonstrations.jsonl"
    assert (ended.code, ended.out.strip()) == (0, f"{path}: 1 rows")
    assert json.loads(path.read_text()) == {
        "prompt": [{"role": "user", "content": "go"}],
        "completion": [{"role": "assistant", "content": "x"}],
    }
