"""Lines that a notebook shows of itself."""

from __future__ import annotations

import re

import pytest

from ludus.compat.art.lines import dim, err, info, ok, step, warn
from ludus.compat.art.scenario import preview_scenarios


def test_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """The time, a word, and what is said as it is."""
    for say in (info, step, ok, warn, err):
        say("[bold]x[/]")
    dim("y")
    *lines, last = capsys.readouterr().out.splitlines()
    assert [re.sub(r"\d", "0", line) for line in lines] == [
        f"[00:00:00] {word:<5} [bold]x[/]" for word in ("INFO", "STEP", "OK", "WARN", "ERR")
    ]
    assert last == "y"


def test_a_preview_of_mappings(capsys: pytest.CaptureFixture[str]) -> None:
    """The first of them."""
    preview_scenarios([{"task": "Add two numbers.", "difficulty": 2}, {"task": "Another.", "difficulty": 3}], n=1)
    assert capsys.readouterr().out == "1. Add two numbers. (difficulty 2/5)\n"
