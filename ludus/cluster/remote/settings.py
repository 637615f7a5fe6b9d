"""What a server that is started elsewhere is started with.

Knows: plain values.  Knows not: who starts it.
"""

from __future__ import annotations

import pydantic

from ludus.processes.placement import RoleSettings
from ludus.settings import Settings


class LaunchSettings(Settings):
    """A server on a machine that is not ours to sit at."""

    folder: str = "runs/serve"
    """There: where models, checkpoints and jobs are kept. A folder that was served before goes on; one that is being
    served is joined. On a cluster, one that its nodes share."""
    workdir: str = "~/"
    """There: what a relative `folder` and `command` are looked for from."""
    command: str = "ludus"
    """There: how Ludus is called, such as `.venv/bin/ludus`."""
    setup: str = ""
    """There: lines of the shell that come first, such as `module load cuda`."""
    overrides: tuple[str, ...] = ()
    """Settings of every model, as `ludus serve` takes them: `engine.kv_bytes=8e9`."""
    idle_s: float = pydantic.Field(default=1800.0, ge=1)
    """The server ends by itself once nobody has asked it for so long and every job is done."""
    start_timeout_s: float | None = pydantic.Field(default=600.0, gt=0)
    """How long it may take until it serves, the queue of a cluster included. None: for ever."""
    ssh_options: tuple[str, ...] = ()
    """Of the ssh command, as in ("-p", "2222")."""
    resources: RoleSettings = RoleSettings()
    """What the server gets. With ssh only `env` can act: the machine is there."""
    sbatch: tuple[str, ...] = ()
    """slurm: more options of sbatch, as in ("--partition=gpu", "--time=04:00:00")."""
    sky: dict[str, pydantic.JsonValue] = pydantic.Field(default_factory=dict)
    """sky: parts of SkyPilot's task file, as in {"resources": {"accelerators": "A100:1"}, "setup": "pip install …"}."""
