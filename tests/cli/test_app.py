"""What every command has in common: help that can be followed, exit codes, errors of one message."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from ludus.cli import app

COMMANDS = (
    ("train",),
    ("rollout",),
    ("eval",),
    ("report",),
    ("gateway",),
    ("models", "list"),
    ("models", "get"),
    ("models", "path"),
    ("verify", "parity"),
    ("verify", "ledger"),
    ("verify", "packing"),
    ("verify", "resume"),
    ("verify", "credit"),
)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_explains_itself_with_an_example(command: tuple[str, ...], ludus: Callable[..., Any]) -> None:
    """`--help` says what the command is for and shows a line that can be typed."""
    ended = ludus(*command, "--help")
    assert ended.code == 0
    assert f"ludus {' '.join(command)}" in ended.out.split("Example")[1]


@pytest.mark.parametrize("path", app.COMMANDS)
def test_a_list_of_commands_says_of_each_what_its_own_help_says_first(path: str) -> None:
    """It is the first paragraph of the command's docstring, and the command is where the table says."""
    command = app.Command(path.split()[-1], app.COMMANDS[path])
    assert inspect.cleandoc(command.load().help or "").split("\n\n")[0].replace("\n", " ") == command.help


def test_help_imports_no_command() -> None:
    """`ludus --help` and `ludus verify --help` load what shows a page, and nothing that a command works with."""
    script = (
        "import sys\n"
        "from ludus.cli.app import run\n"
        "assert run(['--help']) == run(['verify', '--help']) == 0\n"
        "loaded = {name for name in sys.modules if name.startswith('ludus.cli.')}\n"
        "assert loaded == {'ludus.cli.app', 'ludus.cli.console', 'ludus.cli.log'}, loaded\n"
        "heavy = ('torch', 'numpy', 'starlette', 'uvicorn', 'httpx', 'tokenizers', 'ludus.checks')\n"
        "assert not [name for name in heavy if name in sys.modules]\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def test_all_commands_are_on_the_first_page(ludus: Callable[..., Any]) -> None:
    """`ludus --help` lists every command."""
    ended = ludus("--help")
    assert all(command[0] in ended.out for command in COMMANDS)


def test_a_users_mistake_is_one_message_and_code_2(ludus: Callable[..., Any]) -> None:
    """A missing file ends in one sentence on stderr, without a traceback."""
    ended = ludus("train", "nowhere.yaml")
    assert ended.code == 2 and "Traceback" not in ended.err
    assert "cannot read the configuration 'nowhere.yaml'" in ended.err


def test_an_unknown_option_is_code_2(ludus: Callable[..., Any]) -> None:
    """What the command line itself does not know is the user's mistake too."""
    assert ludus("train", "run.yaml", "--no-such-option").code == 2


def test_without_torch_the_hint_is_printed() -> None:
    """Where torch is missing, a command that needs it says what to install, and exits with 2."""
    script = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "from ludus.cli.app import run\n"
        "sys.exit(run(['verify', 'parity', '--model', 'anything']))\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ended.returncode == 2, ended.stderr
    assert "pip install 'ludus[train]'" in ended.stderr and "Traceback" not in ended.stderr


def test_python_m_ludus_is_ludus() -> None:
    """`python -m ludus` runs the same command line."""
    command = [sys.executable, "-m", "ludus", "verify", "ledger", "--trees", "2", "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0 and '"ok": true' in ended.stdout
