"""The examples of pages that need nothing but Ludus run, in the order of the page, and print what it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import blocks, run_block

PAGES = (
    "agents-langchain.md",
    "agents-tools.md",
    "algorithms.md",
    "checks-doctor.md",
    "compat-art.md",
    "episodes.md",
    "episodes-recorder.md",
    "processes.md",
    "text.md",
    "trainer.md",
)


@pytest.mark.parametrize("page", PAGES)
def test_every_example_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In an empty folder."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for code, printed in blocks(page):
        capsys.readouterr()
        run_block(code, names)
        assert printed is None or capsys.readouterr().out == printed
