"""The folder of a launched server on a machine with a shell: its start script, key, command and log.

Knows: files, the options of `ludus serve`, shell scripts.  Knows not: what starts the server, HTTP.
Invariants: the key is in no command line and in no file that other users can read; one server serves a folder, and
launching it again joins that server.

    FOLDER/launch.key      the server's key                  FOLDER/launch.log      its output
    FOLDER/launch.sh       starts the server by exec         FOLDER/launch.command  its command line
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from ludus.cluster.remote.base import ServerStatus, Started
from ludus.cluster.remote.server_address import ServerAddress
from ludus.cluster.remote.settings import LaunchSettings
from ludus.cluster.remote.shell import TIMEOUT_S, Shell, path_there
from ludus.errors import UserError
from ludus.http.keys import new_key

KEY_VARIABLE = "LUDUS_API_KEY"
MOST_LOG_BYTES = 64 * 1024
# The line with the server's address may be far back in the log.
_LOG = (
    "printf '%s\\n' \"$(grep -s '^{\"url\"' launch.log | tail -n 1)\"\n"
    f"tail -c {MOST_LOG_BYTES} launch.log 2>/dev/null || true\n"
)
_JOIN = "if is_alive; then echo joined; cat launch.key; echo; cat launch.command; exit 0; fi\n"


def serve_command(settings: LaunchSettings, *, host: str = "127.0.0.1") -> str:
    """The server's command line, for `workdir` and an environment with the key."""
    words = ["--host", host, "--port", "0", "--idle-s", f"{settings.idle_s:g}", "--json", *settings.overrides]
    return f"{settings.command} serve --folder={path_there(settings.folder)} {shlex.join(words)}"


def becoming(settings: LaunchSettings, command: str) -> str:
    """Script lines that exec the server, for `workdir` and an environment with the key."""
    exports = [f"export {name}={shlex.quote(value)}" for name, value in settings.resources.env.items()]
    return "\n".join([*exports, settings.setup, f"exec {command}"]) + "\n"


def check_same(name: str, folder: str, *, running: str, wanted: str) -> None:
    """Raises UserError if the running server was started with another command than `wanted`."""
    if running != wanted:
        raise UserError(
            f"on {name} the folder {folder!r} is being served with other settings: {running}; launch with the same "
            "ones, choose another folder, or wait until it has ended"
        )


def prepared(settings: LaunchSettings) -> str:
    """The first lines of a script: they change to `workdir`, set it as a variable, and create the folder."""
    return (
        f"set -eu\numask 077\ncd -- {path_there(settings.workdir)}\nworkdir=$(pwd)\nexport workdir\n"
        f"mkdir -p -- {path_there(settings.folder)}\n"
    )


class ShellTarget:
    """A server for `settings.folder` that is reached through `shell`, however it is started."""

    def __init__(self, name: str, shell: Shell, settings: LaunchSettings) -> None:
        self.name = name
        self._shell = shell
        self._settings = settings

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._shell!r}, {self._settings.folder!r})"

    def forward(self, local_port: int, server_address: ServerAddress) -> Sequence[str] | None:
        return self._shell.forward(local_port, server_address.host, server_address.port)


class FolderTarget(ShellTarget):
    """Base of launch targets that start the server by scripts; subclasses define how it is started and stopped."""

    shown: str
    """Shell lines that define the functions `is_alive`, true while the server is running or queued, and `show`, which
    prints one line with its state."""

    def _run(self, script: str, *, timeout_s: float = TIMEOUT_S) -> str:
        """Run the script in the folder, which is created if needed; returns its output."""
        begin = f"{prepared(self._settings)}cd -- {path_there(self._settings.folder)}\n"
        return self._shell.run(f"{begin}{self.shown}\n{script}", timeout_s=timeout_s)

    def _start(self, begin: str, *, host: str = "127.0.0.1") -> Started:
        """Start or join a server that listens on `host`, an address of its machine. begin: script that starts
        `launch.sh`."""
        command = serve_command(self._settings, host=host)
        script = f'#!/bin/sh\n{KEY_VARIABLE}=$(cat launch.key)\nexport {KEY_VARIABLE}\ncd -- "$workdir"\n'
        script += becoming(self._settings, command)
        printed = self._run(
            # The lock makes the second of two concurrent launches wait, and then join.
            f"if command -v flock >/dev/null; then exec 9> launch.lock; flock 9; fi\n{_JOIN}"
            f"printf %s {shlex.quote(new_key())} > launch.key\n"
            f"printf '%s\\n' {shlex.quote(command)} > launch.command\n"
            f"printf %s {shlex.quote(script)} > launch.sh\n"
            ": > launch.log\n"
            f"{begin}"
            "echo started; cat launch.key; echo; cat launch.command\n"
        )
        return self._read(printed, command)

    def _join(self) -> Started | None:
        """Join a running server. None: there is none."""
        printed = self._run(_JOIN)
        return self._read(printed, serve_command(self._settings)) if printed else None

    def status(self) -> ServerStatus:
        printed = self._run(f"is_alive && echo yes || echo no\nshow\n{_LOG}")
        is_alive, words, at, log = printed.split("\n", 3)
        return ServerStatus(is_alive == "yes", words, log, ServerAddress.find(at))

    def _read(self, printed: str, command: str) -> Started:
        state, key, running = printed.split("\n", 2)
        if state == "joined":
            check_same(self._shell.name, self._settings.folder, running=running.strip(), wanted=command)
        return Started(key, is_new=state == "started")
