"""The pages about agent loops: what they show works."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from ludus.aliases import table

DOCS = Path(__file__).parents[2] / "docs"


def test_the_example_does_what_the_page_shows(tmp_path: Path, smollm2: Path) -> None:
    """The page's program, as it stands, prints what stands below it."""
    assert smollm2.exists()
    page = (DOCS / "agent-loops.md").read_text()
    (source, shown) = re.findall(r"```python\n(.*?)```\n```\n(.*?)```", page, re.DOTALL)[0]
    (tmp_path / "example.py").write_text(source)
    run = subprocess.run(
        [sys.executable, "example.py"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(DOCS.parent), **_environment()},
        check=False,
    )
    assert run.stdout == shown, run.stderr


def test_every_import_line_of_the_table_works() -> None:
    page = (DOCS / "coming-from-verl.md").read_text()
    lines = re.findall(r"^\| `(from verl\.[^`]*)`", page, re.MULTILINE)
    assert len(lines) > 10
    for line in lines:
        exec(line.replace("from verl.", "from ludus.verl."), {})


def test_every_key_is_on_the_page() -> None:
    page = (DOCS / "coming-from-verl.md").read_text()
    for key, _ in table():
        assert key.rpartition(".")[2] in page, key


def _environment() -> dict[str, str]:
    import os

    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
