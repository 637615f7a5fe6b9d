"""Runs a command to its end, or until its time is over; then everything that it started is killed.

Knows: processes.  Knows not: what the command measures.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ludus.processes.ended import kill_group


@dataclass(frozen=True, slots=True)
class Ended:
    """What became of a command."""

    code: int | None
    """As in `Popen.returncode`. None: its time was over."""
    out: str
    err: str

    def last_lines(self, count: int) -> str:
        """The last lines that it wrote."""
        return "\n".join((self.out + self.err).rstrip().splitlines()[-count:])


def run_limited(command: Sequence[str], *, limit_s: float | None = None, folder: Path | None = None) -> Ended:
    """Run a command in `folder`. None: without a limit; in the working directory. Raises OSError if it cannot start."""
    pipe = subprocess.PIPE
    # a group of its own, so that a server which it started ends with it
    with subprocess.Popen(
        command, stdout=pipe, stderr=pipe, cwd=folder, text=True, errors="replace", start_new_session=True
    ) as process:
        try:
            out, err = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            kill_group(process.pid)
            out, err = process.communicate()
            return Ended(None, out, err)
        except BaseException:
            kill_group(process.pid)
            raise
    return Ended(process.returncode, out, err)
