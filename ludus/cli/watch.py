"""`ludus watch`: shows runs live in a browser."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import webbrowser
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Annotated

from rich.console import Console
from rich.markup import escape
from typer import Argument, Option

from ludus.cli.console import say, say_json
from ludus.cli.dashboard import show_terminal
from ludus.cli.options import Port, ServedKey, ServedModels
from ludus.cli.sampler_process import SamplerProcess
from ludus.cli.signals import until_signalled
from ludus.errors import BackendError, UserError
from ludus.processes.allocator import share_one_arena
from ludus.processes.blocking import run_blocking
from ludus.processes.end_with_parent import end_with_parent
from ludus.processes.program import PROGRAM
from ludus.runs.watch.folder import RunsFolder, check_watchable
from ludus.runs.watch.server import open_watcher

_NICE = 5  # a run that trains on this machine has priority


def watch(
    folder: Annotated[Path, Argument(metavar="[RUN|FOLDER]", help="A run's folder, or one with runs.")] = Path("runs"),
    port: Port = 0,
    opens: Annotated[bool, Option("--open/--no-open", help="Open the page in a browser.")] = True,
    terminal: Annotated[bool, Option("--terminal", help="Show the overview here, as text; no page is served.")] = False,
    served: ServedModels = None,
    served_key: ServedKey = None,
    expected: Annotated[bool, Option("--expected", hidden=True)] = False,
    as_json: Annotated[bool, Option("--json", help="Say where the page is as one line of JSON.")] = False,
) -> None:
    """Look at runs in a browser, live, until Ctrl-C.

    Running, finished, crashed and copied runs show alike: curves, steps,
    groups and episodes, every turn and token with the numbers that the loss
    used. From any turn one may go back and try again, and talk to the models
    that the run has kept; what they answer is kept beside the run, which is
    only read. The page is served to this machine alone, to who has its link.

    [bold]Examples:[/]  ludus watch runs/guess

      ludus watch runs --port 7000 --no-open

      ludus watch runs/guess --terminal

      ludus watch runs/guess --model qwen3=http://127.0.0.1:8000/v1
    """
    if terminal and served:
        raise UserError("--terminal asks no model: leave --model out, or leave --terminal out and use the page")
    asked = None if terminal else SamplerProcess(served or [], served_key)
    if expected:
        watched = RunsFolder(folder, is_expected=True, sampler=asked)
    else:
        watched = check_watchable(folder, sampler=asked)
    os.nice(_NICE)
    share_one_arena()  # requests are answered by many threads, each of which reads whole episodes
    if terminal:
        with closing(watched), suppress(KeyboardInterrupt):
            show_terminal(watched, Console())
        return
    with open_watcher(watched, port=port) as link:
        if as_json:
            say_json({"link": link})
        else:
            say(f"watching {escape(str(folder))} at [bold]{escape(link)}[/]")
            say("[dim]Ctrl-C ends it; the link has a key in it, and works on this machine alone[/]")
        if opens and _has_browser():
            webbrowser.open(link)
        run_blocking(until_signalled())


@contextmanager
def watching(run: Path) -> Iterator[str]:
    """Serve the page of a run, which may begin later, in a separate process until the block ends; returns its link."""
    command = end_with_parent((*PROGRAM, "watch", str(run), "--no-open", "--expected", "--json"))
    # in its own session, so that Ctrl-C does not end the page while the run finishes its step
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            assert process.stdout is not None, "it was asked for"
            line = process.stdout.readline()
            if not line.startswith("{"):
                raise BackendError(f"the page for {str(run)!r} could not be served; what was said is above")
            yield json.loads(line)["link"]
        finally:
            process.terminate()


def _has_browser() -> bool:
    """Whether there is a graphical browser: a text browser would take over the terminal."""
    is_remote = "SSH_CONNECTION" in os.environ
    return sys.platform == "darwin" or (not is_remote and any(os.environ.get(each) for each in _DISPLAYS))


_DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY")
