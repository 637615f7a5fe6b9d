"""`ludus run`: a script of AReaL's, verl's or ART's users as it is."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from ludus.cli.console import say
from ludus.compat.names import FAMILIES
from ludus.compat.originals.path import installed, put_on_path
from ludus.errors import UserError

_IMPORT = r"^\s*(?:import|from)\s+{}\b"


def run(
    script: Annotated[str, Argument(help="The script, or with -m a module such as verl.trainer.main_ppo.")],
    arguments: Annotated[list[str] | None, Argument(help="Its own, as they are.")] = None,
    as_: Annotated[
        list[str] | None, Option("--as", metavar="FAMILY", help="Ludus's, where the original is installed too.")
    ] = None,
    is_module: Annotated[bool, Option("--module", "-m", help="Run a module by its name.")] = False,
) -> None:
    """Run a script whose imports are AReaL's, verl's or ART's.

    `areal`, `verl`, `art` and `realhf` are Ludus's in it, unless they are
    installed here; --as art says that Ludus's are meant all the same.
    """
    for family in as_ or ():
        if family not in FAMILIES:
            raise UserError(f"--as {family}: there is no such family; there are {', '.join(FAMILIES)}")
    put_on_path(as_ or ())
    sys.argv = [script, *(arguments or ())]
    if is_module:
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(script, run_name="__main__", alter_sys=True)
        return
    path = Path(script)
    if not path.is_file():
        raise UserError(f"there is no script {script!r} in {Path.cwd()}; with -m it is the name of a module")
    source = path.read_text(encoding="utf-8", errors="replace")
    for family in installed():
        if re.search(_IMPORT.format(family), source, re.MULTILINE):
            say(f"{family!r} is installed here and is what {script} imports; Ludus's instead: ludus run --as {family}")
    sys.path.insert(0, str(path.resolve().parent))
    runpy.run_path(script, run_name="__main__")
