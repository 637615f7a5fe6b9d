"""Every example of docs/runs-traces.md runs, and prints what the page says."""

from __future__ import annotations

from typing import Any

import pytest

from ludus.runs.settings import TRACKERS
from tests.docs.pages import DOCS, blocks, run_block


def test_every_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """In the order of the page."""
    names: dict[str, Any] = {}
    for code, printed in blocks("runs-traces.md"):
        run_block(code, names)
        assert printed is None or capsys.readouterr().out == printed


def test_every_tracker_has_its_row() -> None:
    """Of what it is told."""
    text = (DOCS / "runs-traces.md").read_text()
    assert all(f"\n| `{name}` |" in text for name in TRACKERS)
