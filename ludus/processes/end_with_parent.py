"""A command that ends with the process that started it, also if that is killed.

`python end_with_parent.py PARENT COMMAND…`

Knows: Linux's signal for the death of a parent; elsewhere the command runs without it.  Knows not: what is run.
It is started by its path, so that nothing is imported before the command takes its place.
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
    if os.getppid() != parent:  # it died before it could be bound to
        sys.exit(1)
    os.execvp(command[0], command)


def end_with_parent(command: tuple[str, ...]) -> tuple[str, ...]:
    """The same command, which gets SIGTERM when the process that calls this ends."""
    return (sys.executable, "-I", __file__, str(os.getpid()), *command)


if __name__ == "__main__":
    main()
