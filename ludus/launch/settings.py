"""Where a run's processes are placed, and what each kind of them may take.

Knows: plain values.  Knows not: what the processes do.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ludus.settings import Settings


class RoleSettings(Settings):
    """What one process of a role gets."""

    cpus: float = Field(default=1.0, gt=0)
    gpus: float = Field(default=0.0, ge=0)
    memory_gb: float | None = Field(default=None, gt=0)
    """None: no reservation."""
    env: dict[str, str] = Field(default_factory=dict)
    """Added to the environment."""


class SchedulerSettings(Settings):
    """Who starts the processes beside the head: engine replicas, trainer ranks, rollout workers."""

    type: Literal["local", "ray", "slurm"] = "local"
    """local: processes of this machine. ray: actors of the cluster that this process belongs to. slurm: steps of a
    job, which is submitted first if there is none yet."""
    engine: RoleSettings = RoleSettings()
    trainer: RoleSettings = RoleSettings()
    rollout: RoleSettings = RoleSettings()
    max_restarts: int = Field(default=3, ge=0)
    """How often one process that died is started again before the run ends."""
