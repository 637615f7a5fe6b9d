"""`ludus verify`: one JSON object, or a table, and an exit code."""

from __future__ import annotations

import inspect
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from ludus.checks.verify.verdict import Verdict
from ludus.cli.app import COMMANDS
from ludus.cli.verify import command as as_command

CHECKS = [path for words, path in COMMANDS.items() if words.startswith("verify ")]


@dataclass(frozen=True, slots=True)
class DoneResult(Verdict):
    ok = True


@pytest.mark.parametrize("path", CHECKS)
def test_a_check_is_given_what_it_takes(path: str) -> None:
    """Without an option each of its parameters has its default, of its own type: one number is no list of one."""
    module, _, name = path.partition(":")
    check, given = getattr(import_module(f"ludus.{module}"), name), dict[str, Any]()

    @wraps(check)
    def record(**options: Any) -> DoneResult:
        given.update(options)
        return DoneResult()

    app = typer.Typer()
    app.command()(as_command(record))
    assert CliRunner().invoke(app, ["--json"]).exit_code == 0
    parameters = inspect.signature(check).parameters
    for option, value in given.items():
        default = parameters[option].default
        if option != "on_done":
            assert value == (list(default) if isinstance(default, tuple) else default), option


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


@pytest.mark.timeout(300)
def test_a_check_that_is_told_to_end_leaves_nothing_behind(tmp_path: Path, tiny_model_folder: Path) -> None:
    """Its run ends with it, its folder is removed, and the code says which signal it was."""
    command = [sys.executable, "-m", "ludus", "verify", "resume", "--json", "--model", str(tiny_model_folder)]
    process = subprocess.Popen(command, cwd=tmp_path, env={**os.environ, "TMPDIR": str(tmp_path)})
    try:
        while not [*tmp_path.glob("ludus-resume-*/runs/alone/run.db")]:
            assert process.poll() is None, "it ended before it had a run"
            time.sleep(0.05)
        process.terminate()
        assert process.wait(60) == 128 + signal.SIGTERM
    finally:
        process.kill()
        process.wait()
    assert not [*tmp_path.glob("ludus-*")]
