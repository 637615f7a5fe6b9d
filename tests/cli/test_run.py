"""`ludus run`: scripts with the originals' imports, as they are."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ludus.compat.names import FAMILIES

SCRIPT = """
import subprocess, sys
import art
import art.utils
from areal.api.workflow_api import RolloutWorkflow
from helper import NAME
from realhf.api.core.agent_api import Agent
from verl.experimental.agent_loop.agent_loop import AgentLoopBase

import ludus.compat.art.utils
assert art.utils is ludus.compat.art.utils and art.utils.__spec__.name == "ludus.compat.art.utils"
child = subprocess.run([sys.executable, "-c", "import verl; print(verl.__name__)"], capture_output=True, text=True)
print(sys.argv[1:], __name__, NAME, AgentLoopBase.__module__, child.stdout.strip())
"""


def ludus_run(folder: Path, *arguments: str, path: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ludus", "run", *arguments],
        cwd=folder, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.fixture
def original(tmp_path: Path) -> Path:
    """A folder with a package `art` that is not ours."""
    (tmp_path / "theirs" / "art").mkdir(parents=True)
    (tmp_path / "theirs" / "art" / "__init__.py").write_text("OURS = False\n")
    return tmp_path / "theirs"


def test_a_script_with_the_originals_imports_runs_as_it_is(tmp_path: Path) -> None:
    """Its modules are ours, in processes that it starts too; its arguments and neighbours are its own."""
    folder = tmp_path / "far"
    folder.mkdir()
    (folder / "script.py").write_text(SCRIPT)
    (folder / "helper.py").write_text("NAME = 'neighbour'\n")
    done = ludus_run(tmp_path, "far/script.py", "--config", "x.yaml", "-m", "a=1")
    expected = "['--config', 'x.yaml', '-m', 'a=1'] __main__ neighbour ludus.compat.verl.base ludus.compat.verl"
    assert done.stdout.strip() == expected, done.stderr


def test_an_installed_original_is_meant_unless_the_command_says_otherwise(tmp_path: Path, original: Path) -> None:
    """Without --as the script gets the original, and is told; with it, ours."""
    (tmp_path / "script.py").write_text("import art\nprint(art.__name__, hasattr(art, 'OURS'))\n")
    theirs = ludus_run(tmp_path, "script.py", path=str(original))
    assert theirs.stdout.split()[-2:] == ["art", "True"] and "ludus run --as art" in theirs.stdout
    ours = ludus_run(tmp_path, "--as", "art", "script.py", path=str(original))
    assert ours.stdout.split() == ["ludus.compat.art", "False"]


@pytest.mark.parametrize("name", ["s.py", "s.ipynb", "-m"])
def test_an_original_is_named_however_it_is_imported(tmp_path: Path, original: Path, name: str) -> None:
    """Once: from a script, a notebook, a module that is run by its name; not where it is only mentioned."""
    source = '"""\nimport verl\n"""\nimport importlib\nimportlib.import_module("art")\nfrom art import OURS\n'
    cells = {"cells": [{"cell_type": "code", "source": line} for line in ("!pip install x[y]", source)]}
    path = tmp_path / (name if name != "-m" else "s.py")
    path.write_text(json.dumps(cells) if name == "s.ipynb" else source)
    (original / "verl").mkdir()
    (original / "verl" / "__init__.py").write_text("")
    done = ludus_run(tmp_path, *([name] if name != "-m" else ["-m", "s"]), path=str(original))
    said = [line for line in done.stdout.splitlines() if "installed here" in line]
    there = original / "art" / "__init__.py"
    instead = "Ludus's instead: ludus run --as art"
    assert said == [f"'art' is installed here ({there}) and is what is imported; {instead}"], done
    assert done.returncode == 0 and ("!pip install x[y]" in done.stdout) == (name == "s.ipynb")


def test_a_module_runs_by_its_name(tmp_path: Path) -> None:
    """-m finds what lies in the working directory, as python does."""
    (tmp_path / "mine.py").write_text("import sys, verl\nprint(verl.__name__, sys.argv[1:])\n")
    assert ludus_run(tmp_path, "-m", "mine", "a.b=1").stdout.strip() == "ludus.compat.verl ['a.b=1']"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("none.py",), "there is no script 'none.py'"),
        (("--as", "trl", "x.py"), f"there are {', '.join(FAMILIES)}"),
        (("script.py",), "art.nope is not here"),
    ],
)
def test_what_is_not_there_is_named(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    """A file, a family, and a name that an original has and Ludus has not."""
    (tmp_path / "script.py").write_text("from art import nope\n")
    done = ludus_run(tmp_path, *arguments)
    assert said in done.stderr.replace("\n", " ") and done.returncode != 0


@pytest.mark.parametrize(
    ("name", "source", "said"),
    [
        (
            "s.py",
            "def f():\n    return 1 / 0\nf()\n",
            ['s.py", line 3, in <module>', 's.py", line 2, in f', "ZeroDivisionError"],
        ),
        ("s.py", "x = (\n", ['s.py", line 1', "SyntaxError: '(' was never closed"]),
        ("s.py", "import ludus\nraise ludus.UserError('no')\n", ["error: no", "in s.py, line 2"]),
        ("s.ipynb", "1 / 0", ["<s.ipynb, cell 1>, line 1", "ZeroDivisionError"]),
        ("-m", "1 / 0", ['s.py", line 1, in <module>', "ZeroDivisionError"]),
    ],
)
def test_errors_of_a_script_are_shown_as_python_shows_them(
    tmp_path: Path, name: str, source: str, said: list[str]
) -> None:
    """From the script on, without what runs it; what Ludus refuses is one message with the script's line."""
    cell = {"cell_type": "code", "source": source}
    text = json.dumps({"cells": [cell]}) if name.endswith("ipynb") else source
    (tmp_path / (name if name != "-m" else "s.py")).write_text(text)
    done = ludus_run(tmp_path, *([name] if name != "-m" else ["-m", "s"]))
    shown = done.stderr.replace('"<', "<").replace('>"', ">")
    assert all(each in shown for each in said), done.stderr
    assert "typer" not in shown and "cli/run.py" not in shown and done.returncode != 0


def test_a_notebook_gets_the_names_from_the_extension() -> None:
    """`%load_ext ludus.compat` calls a function of that name with the shell."""
    code = "import ludus.compat; ludus.compat.load_ipython_extension(None); import areal; print(areal.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "ludus.compat.areal"


IN_A_NOTEBOOK = """
import subprocess, sys, ludus, ludus.compat.art, ludus.compat.verl
def load(module):
    module.load_ipython_extension(None)
"""
OF_A_CHILD = """
code = "import art, verl; print(art.__name__, verl.__name__)"
print(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout)
"""
INSTEAD = "Ludus's instead: %load_ext ludus.compat.art, in a kernel that has not imported it"


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        # Without a family the original is meant, and is named, whether it is imported before or after.
        ("load(ludus.compat); import art; art.OURS", INSTEAD),
        ("import art; load(ludus.compat)", INSTEAD),
        # With one, ours; in processes that the notebook starts too, and beside a second.
        ("load(ludus.compat.art); import art; print(art.__name__)", "ludus.compat.art"),
        (
            "load(ludus.compat.art); load(ludus.compat.verl); load(ludus.compat)" + OF_A_CHILD,
            "ludus.compat.art ludus.compat.verl",
        ),
        (
            "import art\ntry: load(ludus.compat.art)\nexcept ludus.UserError as error: print(error)",
            "restart the kernel",
        ),
    ],
)
def test_a_notebook_says_whose_names_it_means(tmp_path: Path, original: Path, cells: str, said: str) -> None:
    """Where the original is installed too, `%load_ext ludus.compat.art` is what --as is on the command line."""
    done = subprocess.run(
        [sys.executable, "-c", IN_A_NOTEBOOK + cells],
        env={**os.environ, "PYTHONPATH": str(original)}, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and said in done.stdout, done
    assert ("installed here" in done.stdout) == (said == INSTEAD)


def test_a_script_of_the_shell_runs_as_it_is(tmp_path: Path) -> None:
    """What it calls python runs modules and scripts of ours, by `uv run` and in a checkout of the original too."""
    (tmp_path / "verl" / "trainer").mkdir(parents=True)
    for package in ("verl", "verl/trainer"):
        (tmp_path / package / "__init__.py").write_text("raise SystemExit('the original')\n")
    (tmp_path / "near.py").write_text("import near_too, sys, verl\nprint(verl.__name__, sys.argv[1:])\n")
    (tmp_path / "near_too.py").write_text("")
    (tmp_path / "run.sh").write_text(
        "set -e\nuv run --frozen --extra vllm python3 near.py 'a b' \"$@\"\npython -c 'print(1 + 1)'\n"
        "python3 -u -W ignore -c 'print(2)'\npython -u -W ignore -B near.py\n"
        "echo 'import sys; print(sys.argv)' | python - x\n"
        "python3 -m verl.trainer.main_ppo --config-name=ppo_trainer data.prompt_key=question || exit 3\n"
    )
    done = ludus_run(tmp_path, "--as", "verl", "run.sh", "x=1")
    printed = ["ludus.compat.verl ['a b', 'x=1']", "2", "2", "ludus.compat.verl []", "['-', 'x']"]
    assert done.stdout.split("\n")[:5] == printed, done.stderr
    assert done.returncode == 3 and "data.prompt_key='question' is not possible" in done.stderr
    told = ludus_run(tmp_path, "run.sh")
    assert "'verl' lies in this folder" in told.stdout and "ludus run --as verl" in told.stdout


@pytest.mark.parametrize("first", ["#!/bin/bash", "#!/usr/bin/env bash", "#! /bin/sh"])
def test_the_first_line_says_that_a_script_is_the_shells(tmp_path: Path, first: str) -> None:
    """Whatever it is called; a constant of Python's is refused with what to do instead."""
    (tmp_path / "launch").write_text(f"{first}\necho $1 $WIDTH\nexit 7\n")
    done = ludus_run(tmp_path, "launch", "one")
    assert (done.stdout.strip(), done.returncode) == ("one", 7), done.stderr
    refused = ludus_run(tmp_path, "-p", "WIDTH=2", "launch")
    assert "a script of the shell keeps its constants; set its variables" in refused.stderr.replace("\n", " ")
