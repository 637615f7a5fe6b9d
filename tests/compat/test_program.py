"""Scripts and notebooks as programs: cells share names and one loop, IPython's lines are said and not run."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from ludus.compat.program import Program
from ludus.errors import UserError


def notebook(folder: Path, *cells: str) -> Path:
    path = folder / "it.ipynb"
    kinds = [{"cell_type": "markdown", "source": ["# title"]}]
    kinds += [{"cell_type": "code", "source": cell.splitlines(keepends=True)} for cell in cells]
    path.write_text(json.dumps({"nbformat": 4, "cells": kinds}))
    return path


def test_cells_share_names_and_a_loop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What one cell has started goes on while another awaits; the last expression of a cell is shown."""
    cells = [
        "import asyncio\nlog = []\nasync def f():\n    await asyncio.sleep(0)\n    log.append('f')\n",
        "task = asyncio.create_task(f())\nlog.append('started')",
        "await asyncio.sleep(0)\nawait task\nlog",
        "await asyncio.sleep(0, 'awaited')",
        "print(__name__)\n'hidden';",
        "",
    ]
    Program.read(notebook(tmp_path, *cells)).run()
    assert capsys.readouterr().out.splitlines() == ["['started', 'f']", "'awaited'", "__main__"]


def test_lines_of_ipython_are_said_and_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Magics, shell lines with their continuations, whole cells; a line like one in a string is a string."""
    cells = [
        "%load_ext autoreload\n%autoreload 2",
        "%%html\n<style>not python</style>",
        "%%capture\nx = 1\nif x:\n    !pip install \\\n        a b\nfiles = !ls\nprint(x)",
        's = """\n%not magic\n!nor shell\n"""\nprint(len(s.split()))',
    ]
    program = Program.read(notebook(tmp_path, *cells))
    said = ["%load_ext autoreload", "%autoreload 2", "%%html", "%%capture", "!pip install \\", "files = !ls"]
    assert list(program.skipped) == said
    program.run()
    assert capsys.readouterr().out.split() == ["1", "4"]


def test_constants_of_any_cell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One that stands in no cell is an error."""
    path = notebook(tmp_path, "A = 1", "B = 2\nprint(A, B)")
    Program.read(path, {"A": "5", "B": "x"}).run()
    assert capsys.readouterr().out == "5 x\n"
    with pytest.raises(UserError, match=r"-p C: .*it\.ipynb assigns no such name at top level; there are A, B"):
        Program.read(path, {"C": "1"})


def test_errors_show_the_cell(tmp_path: Path) -> None:
    """Its number counts all cells, as editors do; its source is there for tracebacks."""
    with pytest.raises(ZeroDivisionError) as raised:
        Program.read(notebook(tmp_path, "1 / 0")).run()
    last = raised.traceback[-1]
    assert str(last.frame.code.raw.co_filename) == "<it.ipynb, cell 2>"


def test_what_is_no_notebook_is_refused(tmp_path: Path) -> None:
    """By its path."""
    (tmp_path / "bad.ipynb").write_text("{}")
    with pytest.raises(UserError, match=r"bad\.ipynb is no notebook of version 4"):
        Program.read(tmp_path / "bad.ipynb")


def test_a_script_is_main(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """While it runs; its functions are found by pickle, its folder is on the path."""
    (tmp_path / "beside_it.py").write_text("X = 7\n")
    (tmp_path / "it.py").write_text(
        "import pickle, sys\nfrom beside_it import X\nN = 1\ndef f(): ...\n"
        "print(N, X, pickle.loads(pickle.dumps(f)) is f, sys.modules['__main__'].f is f)\n"
    )
    main = sys.modules["__main__"]
    Program.read(tmp_path / "it.py", {"N": "2"}).run()
    assert capsys.readouterr().out == "2 7 True True\n" and sys.modules["__main__"] is main
