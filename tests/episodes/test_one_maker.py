"""An Episode is made in one place, and so is its outcome: nobody else says what a session has come to."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "ludus"


def callers(name: str) -> set[str]:
    """Files below ludus/ that call `name`."""
    return {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name
    }


def test_one_maker() -> None:
    """`finish` makes an episode; the journal makes those of sessions whose process was killed."""
    assert callers("Episode") == {"episodes/episode.py", "runs/journal.py"}


def test_one_outcome() -> None:
    """`outcome_of` says how it ended, and the same two for what comes after."""
    assert callers("Outcome") == {"episodes/outcome.py", "episodes/episode.py", "runs/journal.py"}
