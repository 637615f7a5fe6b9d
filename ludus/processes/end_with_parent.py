"""Runs a command that ends with the process that started it, even if that is killed.

`python end_with_parent.py PARENT COMMAND…`

Knows: Linux's parent-death signal; on other systems the command runs without it.  Knows not: what is run.
It is started by its path, so that nothing else is imported before it executes the command.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # sys/prctl.h


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # the parent ended before the signal was set up
        sys.exit(1)
    os.execvp(command[0], command)


def end_with_parent(command: tuple[str, ...]) -> tuple[str, ...]:
    """The command, wrapped so that it gets SIGTERM when the calling process ends."""
    return (sys.executable, "-I", __file__, str(os.getpid()), *command)


if __name__ == "__main__":
    main()
