"""How Ludus starts itself: the same whatever lies in the working directory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ludus.cluster.base import role_command
from ludus.processes.program import PROGRAM


def test_nothing_is_imported_from_the_working_directory(tmp_path: Path) -> None:
    """No file named as a library, and no folder named as this package."""
    (tmp_path / "starlette.py").write_text("raise SystemExit('mine')")
    (tmp_path / "ludus").mkdir()
    (tmp_path / "ludus" / "__init__.py").write_text("raise SystemExit('mine')")
    for command in (
        [*role_command("engine", "http://127.0.0.1:1"), "--index", "0"],
        [*PROGRAM, "engine", "serve", "x"],
    ):
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert ended.returncode == 2 and "mine" not in ended.stderr, ended.stderr


def test_agents_there_are_still_found(tmp_path: Path) -> None:
    """By the name of their file or module, behind the libraries."""
    (tmp_path / "my_agent.py").write_text("import starlette.requests\nclass Agent: ...\n")
    (tmp_path / "starlette.py").write_text("raise SystemExit('mine')")
    code = "from ludus.import_strings import import_object as of; print(of('my_agent:Agent'), of('my_agent.py:Agent'))"
    ended = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ended.stdout.count("Agent") == 2, ended.stderr
