"""`ludus verify`: one JSON object, or a table, and an exit code."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def test_each_check_prints_one_object(tiny_model_folder: Path, ludus: Callable[..., Any]) -> None:
    """With --json the last line is one object with the verdict and the caller's seed."""
    model = ("--model", tiny_model_folder)
    commands = (
        ("credit", "--trees", "2", *model),
        ("ledger", "--trees", 20),
        ("packing", *model),
        ("parity", "--tokens", 20, *model),
        ("parity", "--dtype", "bf16", "--tokens", 20, *model),
    )
    for command in commands:
        ended = ludus("verify", *command, "--seed", 7, "--json")
        body = json.loads(ended.last)
        assert ended.code == 0 and body["ok"] is True, command
        assert body["check"] == command[0] and body["seed"] == 7


def test_a_person_gets_a_table(tiny_model_folder: Path, ludus: Callable[..., Any]) -> None:
    """Without --json the turns, their returns and the verdict are shown."""
    ended = ludus("verify", "credit", "--trees", "2", "--model", tiny_model_folder)
    assert ended.last == "ok" and "by hand" in ended.out and "reasoning_stripped" in ended.out
    assert "unbalanced" in ludus("verify", "ledger", "--trees", 5).out
