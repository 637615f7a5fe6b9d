"""Prints lines in notebooks, prefixed by the time and a level.

Knows: the console.  Knows not: the messages.
"""

from __future__ import annotations

import time
from functools import partial

from rich.console import Console
from rich.text import Text


def _say(word: str, style: str, msg: object) -> None:
    line = Text.assemble(f"[{time.strftime('%H:%M:%S')}] ", (f"{word:<5}", style), f" {msg}")
    Console().print(line, soft_wrap=True)


info = partial(_say, "INFO", "blue")
step = partial(_say, "STEP", "cyan")
ok = partial(_say, "OK", "green")
warn = partial(_say, "WARN", "yellow")
err = partial(_say, "ERR", "red")


def dim(msg: object) -> None:
    """Print a line without the prefix."""
    Console().print(Text(str(msg), style="dim"), soft_wrap=True)
