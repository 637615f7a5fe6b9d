"""A server as a process of a machine with a shell: this one, or one behind ssh.

Knows: processes, files beside the server's folder, the words of `ludus serve`.  Knows not: HTTP.
Invariants: the key is in no list of processes and in no file that others may read; one process serves a folder, and
asking for it again joins it; a number that the system has given to another process is not taken for it.

    FOLDER/launch.key      the server's key                  FOLDER/launch.log      what it writes
    FOLDER/launch.pid      its process and when that began   FOLDER/launch.command  what it was started with
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from ludus.errors import UserError
from ludus.http.keys import new_key
from ludus.launch.remote.base import Look, Started
from ludus.launch.remote.settings import LaunchSettings
from ludus.launch.remote.shell import Shell, path_there
from ludus.launch.remote.spot import Spot

KEY_VARIABLE = "LUDUS_API_KEY"
STOP_S = 60.0  # a server that saves a checkpoint is let finish
MOST_LOG_BYTES = 64 * 1024
# When the process began, by the kernel's count: pids come round again, with this they do not. `dead` for one that has
# ended and that nobody has asked after. Empty where there is no /proc; the pid alone has to do there.
_IS_ALIVE = r"""
began() {
    sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | { read -r state a b c d e f g h i j k l m n o p q r at rest || true
        if [ "${state:-}" = Z ]; then echo dead; else echo "${at:-}"; fi; }
}
is_alive() {
    [ -f launch.pid ] && read -r pid at < launch.pid && kill -0 "$pid" 2>/dev/null && [ "$(began "$pid")" = "$at" ]
}
"""
# The line that says where the server listens may be far back.
LOG_SCRIPT = (
    "printf '%s\\n' \"$(grep -s '^{\"url\"' launch.log | tail -n 1)\"\n"
    f"tail -c {MOST_LOG_BYTES} launch.log 2>/dev/null || true\n"
)


def read_log(told: str) -> tuple[str, str, Spot | None]:
    """What stood before it, the log, and where the server listens, of what a script that ends in LOG_SCRIPT printed."""
    first, _, rest = told.partition("\n")
    at, _, log = rest.partition("\n")
    return first, log, Spot.find(at)


def serve_command(settings: LaunchSettings, *, host: str = "127.0.0.1") -> str:
    """The server's command line, to be run in `workdir` with the key in the environment."""
    words = ["--host", host, "--port", "0", "--idle-s", f"{settings.idle_s:g}", "--json", *settings.settings]
    return f"{settings.command} serve --folder={path_there(settings.folder)} {shlex.join(words)}"


def entering(settings: LaunchSettings) -> str:
    """The beginning of every script: in the server's folder, which is made, with nothing that others may read."""
    return (
        "set -eu\numask 077\n"
        f"cd -- {path_there(settings.workdir)}\nworkdir=$(pwd)\n"
        f"mkdir -p -- {path_there(settings.folder)}\ncd -- {path_there(settings.folder)}\n"
    )


def serving(settings: LaunchSettings, command: str) -> str:
    """A script that becomes the server; it is begun in the server's folder with `workdir` in the environment."""
    exports = [f"export {name}={shlex.quote(value)}" for name, value in settings.resources.env.items()]
    key = [f"{KEY_VARIABLE}=$(cat launch.key)", f"export {KEY_VARIABLE}", 'cd -- "$workdir"']
    return "\n".join([*key, *exports, settings.setup, f"exec {command}"]) + "\n"


class ProcessPlace:
    """A process behind `shell`."""

    def __init__(self, shell: Shell, settings: LaunchSettings) -> None:
        if set(settings.resources.model_fields_set) - {"env"}:
            raise UserError(
                f"resources={settings.resources.model_dump(exclude_unset=True)} cannot act on {shell.name}, which is "
                "there already; leave all but env out"
            )
        self.name = shell.name
        self._shell = shell
        self._settings = settings

    def __repr__(self) -> str:
        return f"ProcessPlace({self._shell!r}, {self._settings.folder!r})"

    def start(self) -> Started:
        command = serve_command(self._settings)
        told = self._shell.run(self._start_script(command, new_key()))
        state, key, running = told.split("\n", 2)
        if state == "joined" and running.strip() != command:
            raise UserError(
                f"on {self.name} the folder {self._settings.folder!r} is being served with other settings: "
                f"{running.strip()}; launch with the same ones, choose another folder, or wait until it has ended"
            )
        return Started(key, is_new=state == "started")

    def look(self) -> Look:
        script = f"{entering(self._settings)}{_IS_ALIVE}\nis_alive && echo yes || echo no\n"
        is_alive, log, spot = read_log(self._shell.run(script + LOG_SCRIPT))
        return Look(is_alive == "yes", "it runs" if is_alive == "yes" else "it has ended", log, spot)

    def stop(self) -> None:
        seconds = int(STOP_S)
        self._shell.run(
            f"{entering(self._settings)}{_IS_ALIVE}\n"
            "is_alive || exit 0\n"
            'kill -TERM "$pid"\n'
            f"n=0; while is_alive && [ $n -lt {seconds * 5} ]; do sleep 0.2; n=$((n+1)); done\n"
            # Then its group: what it has started and left ends too, and it itself if it has not.
            'kill -KILL "-$pid" 2>/dev/null || ! is_alive || kill -KILL "$pid"\n'
            "rm -f launch.pid\n",
            timeout_s=STOP_S + 60,
        )

    def forward(self, local_port: int, spot: Spot) -> Sequence[str] | None:
        return self._shell.forward(local_port, spot.host, spot.port)

    def _start_script(self, command: str, key: str) -> str:
        return (
            f"{entering(self._settings)}{_IS_ALIVE}\n"
            # Of two that start at once one waits: who comes second joins.
            "if command -v flock >/dev/null; then exec 9> launch.lock; flock 9; fi\n"
            "if is_alive; then echo joined; cat launch.key; echo; cat launch.command; exit 0; fi\n"
            f"printf %s {shlex.quote(key)} > launch.key\n"
            f"printf '%s\\n' {shlex.quote(command)} > launch.command\n"
            f"printf %s {shlex.quote(serving(self._settings, command))} > launch.sh\n"
            ": > launch.log\n"
            "command -v setsid >/dev/null && own=setsid || own=\n"
            # What runs from here on outlives this connection.
            'workdir="$workdir" nohup $own sh launch.sh >> launch.log 2>&1 < /dev/null 9>&- &\n'
            'printf "%s %s\\n" $! "$(began $!)" > launch.pid\n'
            "echo started; cat launch.key; echo; cat launch.command\n"
        )
