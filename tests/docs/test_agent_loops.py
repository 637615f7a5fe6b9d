"""docs/compat-verl.md and docs/coming-from-verl.md: what they show works."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from ludus.compat.verl.keys import KEYS
from tests.docs.pages import DOCS, blocks, run_block


def test_every_example_runs(smollm2: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As it stands, and prints what stands below it."""
    assert smollm2.exists()
    names: dict[str, Any] = {"__name__": "an_example"}
    for code, printed in blocks("compat-verl.md"):
        run_block(code, names)
        assert printed is None or capsys.readouterr().out == printed


def test_every_import_line_of_the_table_works() -> None:
    page = (DOCS / "coming-from-verl.md").read_text()
    lines = re.findall(r"^\| `(from verl\.[^`]*)`", page, re.MULTILINE)
    assert len(lines) > 10
    for line in lines:
        exec(line.replace("from verl.", "from ludus.compat.verl."), {})


def test_every_key_is_on_the_page() -> None:
    page = (DOCS / "coming-from-verl.md").read_text()
    for key in KEYS:
        assert key.rpartition(".")[2] in page, key
