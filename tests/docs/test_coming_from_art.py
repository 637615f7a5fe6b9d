"""Every example of docs/coming-from-art.md runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from ludus.compat.art.backends import TrainConfig
from ludus.errors import ConfigError
from tests.docs.pages import DOCS, blocks, run_block


def test_every_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an import of a project of ART's, whose trajectories it reads."""
    monkeypatch.chdir(tmp_path)
    group = '{"trajectories": [{"messages_and_choices": [{"role": "user", "content": "?"}], "reward": 0.9}]}\n'
    for split in ("train", "val"):
        folder = tmp_path / "runs" / "my-agentic-task" / "models" / "agent-001" / "trajectories" / split
        folder.mkdir(parents=True)
        (folder / "0003.jsonl").write_text(group)
    names: dict[str, Any] = {}
    for code, _ in blocks("coming-from-art.md"):
        run_block(code, names)
    assert [each.reward for each in names["demonstrations"]] == [0.9]


def test_options_that_are_refused_are_refused() -> None:
    """Each of those that the page lists, by name."""
    lines = (DOCS / "coming-from-art.md").read_text().splitlines()
    (row,) = (line for line in lines if "refused by name, with the key" in line)
    options = re.findall(r"`(\w+)`", row)
    assert len(options) == 11
    for option in options:
        with pytest.raises(ConfigError, match=option):
            TrainConfig(**{option: 1})
