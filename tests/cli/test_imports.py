"""`ludus import`: files in, files and a report out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ludus.compat.config import load_config


def test_areal(tmp_path: Path, ludus: Callable[..., Any]) -> None:
    """A file that `ludus train` loads, and beside it what was not taken."""
    (tmp_path / "config.yaml").write_text(
        "seed: 1\nactor: {path: x}\nrollout: {queue_size: 1}\ntokenizer_path: ${actor.path}\n"
    )
    ended = ludus(
        "import", "areal", tmp_path / "config.yaml", "actor.path=smollm2-135m", "--out", tmp_path / "run.yaml"
    )
    assert ended.code == 0, ended.err
    assert load_config(tmp_path / "run.yaml").model.path == "smollm2-135m"
    assert "there is no such queue" in ended.out
    report = json.loads((tmp_path / "run.import.json").read_text())
    assert report["counts"] == {"left out": 1, "changed": 0, "taken": 2, "not needed": 1}


def test_verl(tmp_path: Path, ludus: Callable[..., Any]) -> None:
    """Rows of several files, one after the other."""
    for name in ("a", "b"):
        rows = [{"prompt": [{"role": "user", "content": name}], "agent_name": "tool_agent"}]
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / f"{name}.parquet")
    out = tmp_path / "rows.jsonl"
    ended = ludus("import", "verl", tmp_path / "a.parquet", tmp_path / "b.parquet", "--out", out, "--json")
    assert ended.code == 0, ended.err
    assert [json.loads(line)["prompt"][0]["content"] for line in out.read_text().splitlines()] == ["a", "b"]
    assert '"counts"' in ended.out and "tool_agent (2)" in ended.out


def test_verl_without_a_usable_row(tmp_path: Path, ludus: Callable[..., Any]) -> None:
    """Nothing is written."""
    (tmp_path / "rows.jsonl").write_text('{"question": "?"}\n')
    ended = ludus("import", "verl", tmp_path / "rows.jsonl", "--out", tmp_path / "out.jsonl")
    assert (ended.code, (tmp_path / "out.jsonl").exists()) == (2, False)
    assert "no row with a usable prompt" in " ".join(ended.err.split())


def test_art(tmp_path: Path, ludus: Callable[..., Any]) -> None:
    """Every model below the folder, and one report."""
    for name in ("one", "two"):
        folder = tmp_path / ".art" / "p" / "models" / name / "trajectories" / "train"
        folder.mkdir(parents=True)
        group = {"trajectories": [{"messages_and_choices": [{"role": "user", "content": "?"}], "reward": 1.0}]}
        (folder / "0001.jsonl").write_text(json.dumps(group) + "\n")
    ended = ludus("import", "art", tmp_path / ".art", "--out", tmp_path / "out")
    assert ended.code == 0, ended.err
    assert f"{tmp_path / 'out' / 'p' / 'models' / 'one'}: 1 groups, 1 trajectories" in ended.out
    assert (tmp_path / "out" / "p" / "models" / "two" / "trajectories" / "train" / "0001.jsonl").is_file()
    names = [entry["name"] for entry in json.loads((tmp_path / "out" / "p.import.json").read_text())["entries"]]
    assert names == ["one: trajectories/train/0001.jsonl", "two: trajectories/train/0001.jsonl"]
    again = ludus("import", "art", tmp_path / ".art", "--out", tmp_path / "out")
    assert (again.code, "exists already" in " ".join(again.err.split())) == (2, True)
