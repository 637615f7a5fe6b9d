"""Launches a server as a process on a machine with a shell: this one, or one reached by ssh.

Knows: processes.  Knows not: HTTP, clusters.
Invariant: a pid that was reused by another process is not mistaken for the server's.

    FOLDER/launch.pid      the server's pid and start time
"""

from __future__ import annotations

from ludus.cluster.remote.base import Started
from ludus.cluster.remote.folder import FolderTarget
from ludus.cluster.remote.settings import LaunchSettings
from ludus.cluster.remote.shell import Shell
from ludus.errors import UserError

STOP_S = 60.0  # long enough for a server to finish saving a checkpoint
# `began` prints the kernel's start time of a process, which tells it from a later one of the same pid; `dead` for a
# zombie; nothing without /proc, where the pid alone must do.
SHOWN = r"""
began() {
    sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | { read -r state a b c d e f g h i j k l m n o p q r at rest || true
        if [ "${state:-}" = Z ]; then echo dead; else echo "${at:-}"; fi; }
}
is_alive() {
    [ -f launch.pid ] && read -r pid at < launch.pid && kill -0 "$pid" 2>/dev/null && [ "$(began "$pid")" = "$at" ]
}
show() { if is_alive; then echo "it runs"; else echo "it has ended"; fi; }
"""
# The process outlives the connection over which it is started.
_BEGIN = """
command -v setsid >/dev/null && own=setsid || own=
nohup $own sh launch.sh >> launch.log 2>&1 < /dev/null 9>&- &
printf '%s %s\\n' $! "$(began $!)" > launch.pid
"""
STOP = f"""
is_alive || exit 0
kill -TERM "$pid"
n=0; while is_alive && [ $n -lt {int(STOP_S) * 5} ]; do sleep 0.2; n=$((n+1)); done
# Then its group: what it has started and left ends too, and it itself if it has not.
kill -KILL "-$pid" 2>/dev/null || ! is_alive || kill -KILL "$pid"
rm -f launch.pid
"""


class ProcessTarget(FolderTarget):
    """A server as a process of the machine of `shell`."""

    shown = SHOWN

    def __init__(self, shell: Shell, settings: LaunchSettings) -> None:
        if set(settings.resources.model_fields_set) - {"env"}:
            raise UserError(
                f"resources={settings.resources.model_dump(exclude_unset=True)} cannot act on {shell.name}, which is "
                "there already; leave all but env out"
            )
        super().__init__(shell.name, shell, settings)

    def start(self) -> Started:
        return self._start(_BEGIN)

    def stop(self) -> None:
        self._run(STOP, timeout_s=STOP_S + 60)
