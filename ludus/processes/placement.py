"""Settings for where a run's processes are placed, and the resources of each kind of process.

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
    """Resources of one process."""

    cpus: float | None = Field(default=None, gt=0)
    """None: one core; for a process on this machine its share of the cores, which is decided when the run begins."""
    gpus: float = Field(default=0.0, ge=0)
    memory_gb: float | None = Field(default=None, gt=0)
    """None: no reservation."""

    @property
    def num_cpus(self) -> float:
        return 1.0 if self.cpus is None else self.cpus


class RoleSettings(ResourceSettings):
    """Resources and environment of one process of a role."""

    env: dict[str, str] = Field(default_factory=dict)
    """Additional environment variables."""


class RaySettings(Settings):
    """The Ray cluster, and the environment of roles in it."""

    address: str = "auto"
    """Address of the cluster. auto: the cluster that this process belongs to."""
    runtime_env: dict[str, Any] = Field(default_factory=dict)
    """Ray's runtime environment for roles, such as {pip: [gymnasium]}. Empty: that of the job."""


class SlurmSettings(Settings):
    """The Slurm job that a run is submitted as."""

    nodes: int = Field(default=1, ge=1)
    warning_s: int = Field(default=120, ge=10)
    """How long before the end of its time a job saves a checkpoint, exits and is queued again."""
    options: dict[str, str | int | None] = Field(default_factory=dict)
    """Further options of sbatch, by long name, such as {partition: gpu, time: '04:00:00'}. A value None: a flag."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables in the job, for the head and for its roles."""
    template: str | None = None
    """File with another batch script, in Jinja. None: the one that comes with Ludus."""


class SchedulerSettings(Tagged):
    """How the processes besides the head are started: engine replicas, trainer ranks, rollout workers."""

    tag = "type"
    type: str
    host: str | None = None
    """The address at which roles reach the head: 127.0.0.1 if all of them are on its machine; auto: the address of its
    default route. None: auto for slurm with several nodes, else 127.0.0.1."""
    engine: RoleSettings = RoleSettings()
    trainer: RoleSettings = RoleSettings()
    rollout: RoleSettings = RoleSettings()
    max_restarts: int = Field(default=3, ge=0)
    """How often a process that died is restarted before the run ends."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.host in ("0.0.0.0", "::"):
            raise ConfigError(f"host={self.host!r} is no address to be reached at; name one, or say auto")
        return self

    @property
    def address(self) -> str:
        """The head's address, determined if it is not given."""
        return address_of_machine() if self.host == "auto" else self.host or "127.0.0.1"

    def role(self, name: str) -> RoleSettings:
        found: RoleSettings = getattr(self, name)
        return found


class LocalScheduler(SchedulerSettings):
    """Processes on this machine."""

    type: Literal["local"] = "local"

    def idle(self) -> Iterator[Idle]:
        for name in ("engine", "trainer", "rollout"):
            if self.is_set(key := f"{name}.memory_gb"):
                yield Idle(key, "type is 'local', where nothing is reserved")


class RayScheduler(SchedulerSettings):
    """Ray actors in the cluster that this process belongs to."""

    type: Literal["ray"] = "ray"
    ray: RaySettings = RaySettings()


class SlurmScheduler(SchedulerSettings):
    """Steps of a Slurm job, which is submitted first if there is none yet."""

    type: Literal["slurm"] = "slurm"
    head: ResourceSettings = ResourceSettings()
    """The head's resources in the job."""
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
        """The head's address; with several nodes, that of its default route, unless it is given."""
        return address_of_machine() if self.host is None and self.slurm.nodes > 1 else super().address


SCHEDULERS = {"local": LocalScheduler, "ray": RayScheduler, "slurm": SlurmScheduler}
