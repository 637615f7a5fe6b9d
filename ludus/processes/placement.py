"""Where a run's processes are placed, and what each kind of them may take.

Knows: plain values.  Knows not: what the processes do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from ludus.errors import ConfigError
from ludus.processes.address import address_of_machine
from ludus.settings import Idle, Settings, Tagged


class ResourceSettings(Settings):
    """What one process takes of its machine."""

    cpus: float | None = Field(default=None, gt=0)
    """None: one; of a process of this machine its share of the cores, which is decided when the run begins."""
    gpus: float = Field(default=0.0, ge=0)
    memory_gb: float | None = Field(default=None, gt=0)
    """None: no reservation."""

    @property
    def num_cpus(self) -> float:
        return 1.0 if self.cpus is None else self.cpus


class RoleSettings(ResourceSettings):
    """What one process of a role gets."""

    env: dict[str, str] = Field(default_factory=dict)
    """Added to the environment."""


class RaySettings(Settings):
    """Which Ray cluster, and in what environment roles run there."""

    address: str = "auto"
    """Of the cluster. auto: the one that this process belongs to."""
    runtime_env: dict[str, Any] = Field(default_factory=dict)
    """Ray's runtime environment of the roles, such as {pip: [gymnasium]}. None of its keys: that of the job."""


class SlurmSettings(Settings):
    """The job that a run is submitted as."""

    nodes: int = Field(default=1, ge=1)
    warning_s: int = Field(default=120, ge=10)
    """So long before its time is over a job saves a checkpoint, leaves and is queued again."""
    options: dict[str, str | int | None] = Field(default_factory=dict)
    """More options of sbatch by their long names, such as {partition: gpu, time: '04:00:00'}. A value None: a flag."""
    env: dict[str, str] = Field(default_factory=dict)
    """Set in the job, for the head and for its roles."""
    template: str | None = None
    """File of another batch script, in Jinja. None: the one that comes with Ludus."""


class SchedulerSettings(Tagged):
    """Who starts the processes beside the head: engine replicas, trainer ranks, rollout workers."""

    tag = "type"
    type: str
    host: str | None = None
    """The head's address, at which its roles reach it: 127.0.0.1 where all of them are on its machine; auto: the
    address of its way to other machines. None: auto for slurm with several nodes, else 127.0.0.1."""
    engine: RoleSettings = RoleSettings()
    trainer: RoleSettings = RoleSettings()
    rollout: RoleSettings = RoleSettings()
    max_restarts: int = Field(default=3, ge=0)
    """How often one process that died is started again before the run ends."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.host in ("0.0.0.0", "::"):
            raise ConfigError(f"host={self.host!r} is no address to be reached at; name one, or say auto")
        return self

    @property
    def address(self) -> str:
        """The head's address, found if it is not named."""
        return address_of_machine() if self.host == "auto" else self.host or "127.0.0.1"

    def role(self, name: str) -> RoleSettings:
        found: RoleSettings = getattr(self, name)
        return found


class LocalScheduler(SchedulerSettings):
    """Processes of this machine."""

    type: Literal["local"] = "local"

    def idle(self) -> Iterator[Idle]:
        for name in ("engine", "trainer", "rollout"):
            if self.is_set(key := f"{name}.memory_gb"):
                yield Idle(key, "type is 'local', where nothing is reserved")


class RayScheduler(SchedulerSettings):
    """Actors of the cluster that this process belongs to."""

    type: Literal["ray"] = "ray"
    ray: RaySettings = RaySettings()


class SlurmScheduler(SchedulerSettings):
    """Steps of a job, which is submitted first if there is none yet."""

    type: Literal["slurm"] = "slurm"
    head: ResourceSettings = ResourceSettings()
    """What the head takes of the job."""
    slurm: SlurmSettings = SlurmSettings()

    @model_validator(mode="after")
    def _check_nodes(self) -> Self:
        if self.slurm.nodes > 1 and self.host == "127.0.0.1":
            raise ConfigError(
                f"slurm.nodes={self.slurm.nodes} cannot act with host={self.host!r}: roles on other nodes would not "
                "reach the head; leave scheduler.host out, or set it to auto"
            )
        return self

    @property
    def address(self) -> str:
        """The head's address; with several nodes that of its way to the others, unless it is named."""
        return address_of_machine() if self.host is None and self.slurm.nodes > 1 else super().address


SCHEDULERS = {"local": LocalScheduler, "ray": RayScheduler, "slurm": SlurmScheduler}
