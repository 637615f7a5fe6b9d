"""`ludus run`: runs an unmodified script written for AReaL, verl or ART."""

from __future__ import annotations

import importlib
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Annotated

import typer
from rich.markup import escape
from typer import Argument, Option

from ludus.cli.console import say
from ludus.compat.names import FAMILIES
from ludus.compat.originals.extension import name_originals
from ludus.compat.originals.path import put_on_path
from ludus.compat.overrides import constant as parse_constant
from ludus.compat.overrides import put
from ludus.compat.program import Program
from ludus.errors import LudusError, UserError

SHELL = (".sh", ".bash")
_SHELL_LINE = re.compile(rb"#!.*\b(ba|z|da|k)?sh\b")
# The `python` that a shell script finds: it runs modules and scripts by `ludus run`. Options of Python's own before
# them, such as -u, go to the Python that does.
_PYTHON = """#!/bin/sh
options=""
while :; do
  case "$1" in
    -[WX]) options="$options $1 $2"; shift 2 ;;
    -[WX]?*|-[bBdEiIOPqRsSuvx]*) options="$options $1"; shift ;;
    -m) shift; exec {python} $options -m ludus run {as_} -m "$@" ;;
    *.py) exec {python} $options -m ludus run {as_} "$@" ;;
    *) exec {python} $options "$@" ;;
  esac
done
"""
# The `uv` that it finds: `uv run … python …` is that `python`, without uv's environment.
_UV = """#!/bin/sh
if [ "$1" = run ]; then
  for word in "$@"; do
    if [ "$word" = python ] || [ "$word" = python3 ]; then
      while [ "$1" != "$word" ]; do shift; done
      shift
      exec {folder}/python "$@"
    fi
  done
fi
{otherwise}
"""


def _say_as_it_is(text: str) -> None:
    """Print text from a script, in which `[…]` is not markup."""
    say(escape(text))


def _run_shell(script: Path, arguments: Sequence[str], families: Sequence[str]) -> int:
    """Run a shell script; returns its exit code."""
    python = shlex.quote(sys.executable)
    as_ = " ".join(f"--as {family}" for family in families)
    with tempfile.TemporaryDirectory(prefix="ludus-run-") as folder:
        uv = shutil.which("uv")
        otherwise = 'echo "uv: not found" >&2; exit 127' if uv is None else f'exec {shlex.quote(uv)} "$@"'
        own_python = _PYTHON.format(as_=as_, python=python)
        own_uv = _UV.format(folder=shlex.quote(folder), otherwise=otherwise)
        for name, text in (("python", own_python), ("python3", own_python), ("uv", own_uv)):
            path = Path(folder) / name
            path.write_text(text, encoding="utf-8")
            path.chmod(0o700)
        found = {**os.environ, "PATH": os.pathsep.join([folder, os.environ.get("PATH", "")])}
        return subprocess.run(["bash", str(script), *arguments], env=found, check=False).returncode


def _is_shell(script: Path) -> bool:
    """By its name, or by the program that its first line names."""
    with script.open("rb") as file:
        first = file.readline(256)
    return script.suffix in SHELL or bool(_SHELL_LINE.match(first))


def _in_script(traceback: TracebackType | None) -> Iterator[TracebackType]:
    """The entries of a traceback from where it enters the script on."""
    while traceback is not None:
        if traceback.tb_frame.f_globals.get("__name__") == "__main__":
            yield traceback
        traceback = traceback.tb_next


@contextmanager
def _shown_as_python_does() -> Iterator[None]:
    """Show tracebacks from the script's frames on; errors of Ludus stay one message, with the script's line."""
    try:
        yield
    except LudusError as error:
        if places := list(_in_script(error.__traceback__)):
            error.add_note(f"in {places[-1].tb_frame.f_code.co_filename}, line {places[-1].tb_lineno}")
        raise
    except Exception as error:
        is_unread = isinstance(error, SyntaxError)
        error.__traceback__ = next(_in_script(error.__traceback__), None if is_unread else error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)
        raise typer.Exit(1) from None


def run(
    script: Annotated[str, Argument(help="The script or notebook, or with -m a module: verl.trainer.main_ppo.")],
    arguments: Annotated[list[str] | None, Argument(help="Its own, as they are.")] = None,
    as_: Annotated[
        list[str] | None, Option("--as", metavar="FAMILY", help="Ludus's, where the original is installed too.")
    ] = None,
    is_module: Annotated[bool, Option("--module", "-m", help="Run a module by its name.")] = False,
    model: Annotated[
        list[str] | None,
        Option("--model", metavar="NAME=PLACE", help="Another model, or the address of an API, for one of its."),
    ] = None,
    set_: Annotated[
        list[str] | None, Option("--set", metavar="KEY=VALUE", help="A key of the configuration, above what it says.")
    ] = None,
    constant: Annotated[
        list[str] | None, Option("-p", metavar="NAME=VALUE", help="Another value for a constant at its top level.")
    ] = None,
) -> None:
    """Run a script or a notebook whose imports are AReaL's, verl's or ART's,
    or a script of the shell that calls one.

    `areal`, `verl`, `art` and `realhf` are Ludus's in it, unless they are
    installed here; --as art says that Ludus's are meant all the same.
    What --model and --set say holds in processes that it starts, too.
    """
    for family in as_ or ():
        if family not in FAMILIES:
            raise UserError(f"--as {family}: there is no such family; there are {', '.join(FAMILIES)}")
    put_on_path(as_ or ())
    for family in as_ or ():  # before the script's folder is on the path, as an original may be in it
        importlib.import_module(family)
    name_originals(_say_as_it_is, "ludus run --as {family}")
    put(model or (), set_ or ())
    constants = dict(map(parse_constant, constant or ()))
    sys.argv = [script, *(arguments or ())]
    if is_module:
        if constants:
            raise UserError(f"-p {', '.join(constants)}: a module that is run by its name keeps its constants")
        sys.path.insert(len(as_ or ()), str(Path.cwd()))
        with _shown_as_python_does():
            runpy.run_module(script, run_name="__main__", alter_sys=True)
        return
    path = Path(script)
    if not path.is_file():
        raise UserError(f"there is no script {script!r} in {Path.cwd()}; with -m it is the name of a module")
    if _is_shell(path):
        if constants:
            raise UserError(f"-p {', '.join(constants)}: a script of the shell keeps its constants; set its variables")
        for family in (each for each in FAMILIES if each not in (as_ or ()) and Path(each, "__init__.py").exists()):
            say(f"{family!r} lies in this folder and is what Python finds; Ludus's instead: ludus run --as {family}")
        raise typer.Exit(_run_shell(path, arguments or (), as_ or ()))
    with _shown_as_python_does():
        program = Program.read(path, constants)
        if program.skipped:
            _say_as_it_is(f"not run, for they are IPython's: {' · '.join(program.skipped)}")
        program.run()
