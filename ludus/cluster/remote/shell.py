"""Runs shell scripts on this machine, or on another through the system's ssh.

Knows: sh, ssh.  Knows not: what the scripts do.
Invariant: a script is sent over stdin, so that secrets in it appear in no command line, here or there.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence

from ludus.errors import BackendError, UserError

TIMEOUT_S = 120.0  # enough for a machine that wakes up, a login node under load, a shared disk that hangs for a while
_SSH_FAILED = 255  # ssh's own exit code; any other is the script's
LATER = 75
"""Exit code of a script that failed temporarily (EX_TEMPFAIL of sysexits.h)."""
_OPTIONS = (
    "BatchMode=yes",  # no password prompts
    "ConnectTimeout=20",
    "ServerAliveInterval=15",  # a lost connection is noticed within 45 s
    "ServerAliveCountMax=3",
)


class UnreachableError(BackendError):
    """The machine cannot be reached now, but perhaps later."""


class Here:
    """Runs scripts on this machine. Safe to use from any thread, as `Ssh` is."""

    name = "this machine"
    """Used in messages."""

    def __repr__(self) -> str:
        return "Here()"

    def run(self, script: str, *, timeout_s: float = TIMEOUT_S) -> str:
        """The script's output.

        Raises BackendError if it failed or took too long, UnreachableError if the machine cannot be reached.
        """
        return _run(("sh", "-s"), script, where=self.name, timeout_s=timeout_s)

    def forward(self, local_port: int, host: str, port: int) -> None:
        """A command that forwards `local_port` of this machine to host:port there, prints a line once it does, and ends
        when its stdin is closed. None: host:port can be reached directly."""


class Ssh:
    """A machine that `ssh DESTINATION` reaches without prompts; ~/.ssh/config applies."""

    def __init__(self, destination: str, options: Sequence[str] = ()) -> None:
        """options: options of the ssh command, as in ("-p", "2222")."""
        if not destination or destination.startswith("-") or any(char.isspace() for char in destination):
            raise UserError(
                f"ssh:{destination} names no machine; write ssh:HOST or ssh:USER@HOST, as for the command ssh"
            )
        self.name = destination
        self._command = ("ssh", *(word for option in _OPTIONS for word in ("-o", option)), *options)

    def __repr__(self) -> str:
        return f"Ssh({self.name!r})"

    def run(self, script: str, *, timeout_s: float = TIMEOUT_S) -> str:
        command = (*self._command, "-T", self.name, "exec sh -s")
        return _run(command, script, where=self.name, timeout_s=timeout_s, failed=_SSH_FAILED)

    def forward(self, local_port: int, host: str, port: int) -> Sequence[str]:
        ways = ("-L", f"127.0.0.1:{local_port}:{host}:{port}", "-o", "ExitOnForwardFailure=yes")
        # A remote `cat` instead of -N: it reads our stdin, so that ssh ends with this process, however that ends.
        return (*self._command, "-T", *ways, self.name, "echo open; exec cat >/dev/null")


Shell = Here | Ssh


def path_there(path: str) -> str:
    """The path, quoted for a script; `~/` is the remote user's home."""
    return f'"$HOME"/{shlex.quote(path[2:])}' if path.startswith("~/") else shlex.quote(path)


def _run(command: Sequence[str], script: str, *, where: str, timeout_s: float, failed: int | None = None) -> str:
    """The script's output. failed: exit code that means that the script was not run. None: there is none."""
    try:
        ended = subprocess.run(command, input=script, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        raise UnreachableError(f"{where} did not answer in {timeout_s:g} s") from None
    except FileNotFoundError:
        raise UserError(f"there is no command {command[0]!r} on this machine; install it") from None
    if ended.returncode == failed:
        raise UnreachableError(f"{where} cannot be reached: {ended.stderr.strip()}; try `ssh {where} true`")
    if ended.returncode == LATER:
        raise UnreachableError(f"on {where}: {ended.stderr.strip()}")
    if ended.returncode:
        raise BackendError(f"on {where}: {(ended.stderr or ended.stdout).strip() or f'exit code {ended.returncode}'}")
    return ended.stdout
