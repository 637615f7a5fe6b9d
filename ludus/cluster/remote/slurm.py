"""Launches a server as a Slurm job, submitted on this machine or on a login node reached by ssh.

Knows: sbatch, squeue, scancel.  Knows not: HTTP.
Rules: the folder is on a disk that the nodes share. The server listens on all addresses of its node, because
connections come from the machine that submitted the job; every request needs its key.

    FOLDER/launch.job      the id of its job
"""

from __future__ import annotations

import shlex

from ludus.cluster.remote.base import Started
from ludus.cluster.remote.folder import FolderTarget
from ludus.cluster.remote.settings import LaunchSettings
from ludus.cluster.remote.shell import LATER, Shell
from ludus.errors import UserError

STOP_S = 60.0  # Slurm itself kills processes that do not end within its KillWait, commonly 30 s
WARNING_S = 120  # how long before the job's time limit the server is signalled, to save its state
_SHOWN = f"""
ask() {{
    [ -f launch.job ] || {{ echo "NONE"; return; }}
    answer=$(squeue --noheader --jobs "$(cat launch.job)" --format '%T (%r)' 2>&1) || case "$answer" in
        *[Ii]"nvalid job id"*) answer= ;;
        *) echo "squeue: $answer" >&2; exit {LATER} ;;
    esac
    echo "${{answer:-NONE}}"
}}
is_alive() {{
    state=$(ask) || exit $?
    case "$state" in
        NONE*|BOOT_FAIL*|CANCELLED*|COMPLETED*|DEADLINE*|FAILED*|NODE_FAIL*|OUT_OF_MEMORY*|PREEMPTED*|TIMEOUT*) false ;;
    esac
}}
show() {{
    state=$(ask) || exit $?
    if [ "$state" = NONE ]; then echo "its job has ended"; else echo "job $(cat launch.job) is $state"; fi
}}
"""
_STOP = f"""
is_alive || exit 0
scancel "$(cat launch.job)"
n=0; while is_alive && [ $n -lt {int(STOP_S)} ]; do sleep 1; n=$((n+1)); done
rm -f launch.job
"""


class SlurmTarget(FolderTarget):
    """A server as a job that is submitted through `shell`."""

    shown = _SHOWN

    def __init__(self, shell: Shell, settings: LaunchSettings) -> None:
        super().__init__(f"Slurm at {shell.name}", shell, settings)
        self._options = _options(settings)

    def start(self) -> Started:
        begin = (
            f'job=$(sbatch --parsable --chdir "$(pwd)" --output "$(pwd)/launch.log" {shlex.join(self._options)} '
            "launch.sh 9>&-)\n"
            "printf '%s\\n' \"${job%%;*}\" > launch.job\n"
        )
        return self._start(begin, host="0.0.0.0")

    def stop(self) -> None:
        self._run(_STOP, timeout_s=STOP_S + 60)


def _options(settings: LaunchSettings) -> list[str]:
    """Options of sbatch; the user's come last, and override ours."""
    asked = settings.resources
    for name, value in (("cpus", asked.num_cpus), ("gpus", asked.gpus)):
        if value != int(value):
            raise UserError(f"resources.{name}={value:g} cannot be had from Slurm, which gives whole ones")
    options = [
        "--job-name=ludus-serve",
        "--nodes=1",
        "--ntasks=1",
        "--export=ALL",  # includes `workdir`
        # A requeued job may run on another node, where its client would not find it.
        "--no-requeue",
        f"--signal=B:TERM@{WARNING_S}",
        f"--cpus-per-task={int(asked.num_cpus)}",
    ]
    options += [f"--gpus={int(asked.gpus)}"] if asked.gpus else []
    options += [] if asked.memory_gb is None else [f"--mem={round(asked.memory_gb * 1024)}M"]
    return [*options, *settings.sbatch]
