"""Launches a server on a cloud machine that SkyPilot rents and returns: its task file, `sky launch` and `sky down`.

Knows: SkyPilot's task file and commands.  Knows not: clouds, HTTP.
Rules: SkyPilot adds the machine to the configuration of ssh, under the cluster's name. The server is SkyPilot's job, so
that the machine counts as idle, and is returned, when the server has ended for any reason.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from ludus.cluster.remote.base import Started
from ludus.cluster.remote.folder import KEY_VARIABLE, FolderTarget, becoming, prepared, serve_command
from ludus.cluster.remote.process import SHOWN, STOP, STOP_S
from ludus.cluster.remote.settings import LaunchSettings
from ludus.cluster.remote.shell import Ssh, UnreachableError, path_there
from ludus.errors import BackendError, UserError
from ludus.http.keys import new_key

IDLE_MINUTES = 5  # from the end of the server until the machine is returned; SkyPilot checks every minute
SETUP = "pip install 'ludus[train]'"
_OURS = ("name", "num_nodes", "run", "secrets")
_LAST_CHARS = 4000
_STREAMS: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}


class SkyTarget(FolderTarget):
    """A server on the cluster of that name, which is rented for it. A cluster that exists already is kept
    afterwards."""

    shown = SHOWN

    def __init__(self, cluster: str, settings: LaunchSettings) -> None:
        shell = Ssh(cluster, settings.ssh_options)
        super().__init__(f"the cluster {cluster!r} of SkyPilot", shell, settings)
        self._cluster = cluster
        self._is_rented = False
        """Whether the cluster was rented for this server; otherwise it is not returned here."""
        task_file(settings)  # report errors in the settings now

    def __repr__(self) -> str:
        return f"SkyTarget({self._cluster!r}, {self._settings.folder!r})"

    def start(self) -> Started:
        try:
            running = self._join()
        except UnreachableError:  # not rented yet, or returned
            running = None
            self._is_rented = True
        if running is not None:
            return running
        key = new_key()
        with tempfile.TemporaryDirectory(prefix="ludus-sky-") as folder:
            file = Path(folder) / "task.yaml"
            file.write_text(task_file(self._settings, is_rented=self._is_rented))
            # The key is passed in the environment, as all users of this machine can see command lines.
            words = ("launch", "--yes", "--detach-run", "--cluster", self._cluster, "--secret", KEY_VARIABLE, str(file))
            try:
                _sky(words, {KEY_VARIABLE: key}, timeout_s=self._settings.start_timeout_s)
            except BackendError:
                self.stop()  # returns a machine rented in vain, or ends what was started on an existing one
                raise
        return Started(key, is_new=True)

    def stop(self) -> None:
        if not self._is_rented:
            self._run(STOP, timeout_s=STOP_S + 60)
            return
        _sky(("down", "--yes", self._cluster), {}, timeout_s=None)


def task_file(settings: LaunchSettings, *, is_rented: bool = True) -> str:
    """SkyPilot's YAML. Raises UserError if the settings contain a part of it that Ludus writes.

    is_rented: the machine is returned when it is idle. False: its existing setting for that is kept.
    """
    for name in _OURS:
        if name in settings.sky:
            raise UserError(f"sky has the part {name!r}, which Ludus writes; the others are yours, such as resources")
    resources = settings.sky.get("resources", {})
    if not isinstance(resources, Mapping):
        raise UserError(f"sky['resources'] must be a mapping as in SkyPilot's task file, not {resources!r:.100}")
    autostop = {"autostop": {"idle_minutes": IDLE_MINUTES, "down": True}}
    task: dict[str, Any] = {
        "name": "ludus-serve",
        "num_nodes": 1,
        "setup": SETUP,
        **settings.sky,
        "resources": {**(autostop if is_rented else {}), **_resources(settings), **resources},
        "secrets": {KEY_VARIABLE: None},
        "run": _run_script(settings),
    }
    return yaml.safe_dump(task, sort_keys=False, width=10_000)


def _resources(settings: LaunchSettings) -> dict[str, Any]:
    asked = settings.resources
    if asked.gpus:
        raise UserError(
            f"resources.gpus={asked.gpus:g} says not which; write sky={{'resources': {{'accelerators': 'A100:1'}}}}"
        )
    least = {"cpus": asked.cpus, "memory": asked.memory_gb}
    return {name: f"{amount:g}+" for name, amount in least.items() if amount is not None}


def _run_script(settings: LaunchSettings) -> str:
    """The job's script: writes the files of the folder, then execs the server."""
    command = serve_command(settings)
    return (
        f"{prepared(settings)}cd -- {path_there(settings.folder)}\n"
        f'printf %s "${KEY_VARIABLE}" > launch.key\n'
        f"printf '%s\\n' {shlex.quote(command)} > launch.command\n"
        f"{SHOWN}\n"
        'printf "%s %s\\n" $$ "$(began $$)" > launch.pid\n'
        "exec > launch.log 2>&1\n"
        'cd -- "$workdir"\n'
        f"{becoming(settings, command)}"
    )


def _sky(words: Sequence[str], environment: Mapping[str, str], *, timeout_s: float | None) -> None:
    command = ("sky", *words)
    try:
        env = {**os.environ, **environment}
        ended = subprocess.run(command, text=True, env=env, timeout=timeout_s, check=False, **_STREAMS)
    except FileNotFoundError:
        raise UserError(
            "there is no command 'sky' on this machine: pip install 'skypilot[aws]', or your cloud"
        ) from None
    except subprocess.TimeoutExpired:
        raise BackendError(
            f"`sky {words[0]}` has not ended after {timeout_s:g} s; give it more with start_timeout_s=…"
        ) from None
    if ended.returncode:
        raise BackendError(f"`sky {words[0]}` failed with exit code {ended.returncode}:\n{ended.stdout[-_LAST_CHARS:]}")
