"""Whether and how a process has ended, found out without reaping it, so that its pid is not reused.

Knows: processes that lead a group of their own.  Knows not: why they were started.
"""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress


def exit_code(process: subprocess.Popen[bytes]) -> int | None:
    """The exit code as in `Popen.returncode`: negative for the signal that ended it. None: it is alive.

    The process keeps its pid until it is waited for. Without `os.waitid` (on macOS before Python 3.13) asking reaps the
    process, and what was left of its group can no longer be killed.
    """
    if not hasattr(os, "waitid"):
        if process.returncode is None and process.poll() is not None:  # asked again, the number may be another's
            kill_group(process.pid)
        return process.returncode
    ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if ended is None:
        return None
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


def how_it_ended(code: int) -> str:
    """An `exit_code` in words, such as `killed by SIGSEGV` or `exit status 3`."""
    return f"exit status {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"


def kill_group(pid: int) -> bool:
    """Kill a process group. Returns whether there was a process in it."""
    with suppress(ProcessLookupError, PermissionError):  # PermissionError: what macOS says of a zombie's group
        os.killpg(pid, signal.SIGKILL)
        return True
    return False
