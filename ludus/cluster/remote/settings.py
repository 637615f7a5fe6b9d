"""How a training server is started on another machine.

Knows: plain values.  Knows not: what starts it.
"""

from __future__ import annotations

import pydantic

from ludus.processes.placement import RoleSettings
from ludus.settings import Settings


class LaunchSettings(Settings):
    """A server on another machine. "There" means on that machine."""

    folder: str = "runs/serve"
    """There: where models, checkpoints and jobs are stored. A folder that was served before is continued; a running
    server of the folder is joined. On a cluster, use a folder that its nodes share."""
    workdir: str = "~/"
    """There: the folder to which a relative `folder` and `command` refer."""
    command: str = "ludus"
    """Remote command for Ludus, such as `.venv/bin/ludus`."""
    setup: str = ""
    """There: shell lines that run first, such as `module load cuda`."""
    overrides: tuple[str, ...] = ()
    """Settings of every model, as for `ludus serve`: `engine.kv_bytes=8e9`."""
    idle_s: float = pydantic.Field(default=1800.0, ge=1)
    """The server ends by itself after this time without requests, once every job is done."""
    start_timeout_s: float | None = pydantic.Field(default=600.0, gt=0)
    """Time limit until it serves, including a cluster's queue. None: no limit."""
    ssh_options: tuple[str, ...] = ()
    """Options of the ssh command, as in ("-p", "2222")."""
    resources: RoleSettings = RoleSettings()
    """What the server gets. With ssh only `env` has an effect: the machine is already there."""
    sbatch: tuple[str, ...] = ()
    """slurm: further options of sbatch, as in ("--partition=gpu", "--time=04:00:00")."""
    sky: dict[str, pydantic.JsonValue] = pydantic.Field(default_factory=dict)
    """sky: parts of SkyPilot's task file, as in {"resources": {"accelerators": "A100:1"}, "setup": "pip install …"}."""
