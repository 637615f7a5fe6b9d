"""Where a run's processes are placed, and what each kind of them may take.

Knows: plain values.  Knows not: what the processes do.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from ludus.errors import ConfigError
from ludus.launch.address import address_of_machine
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
    host: str = "127.0.0.1"
    """The head's address, at which its roles reach it: 127.0.0.1 where all of them are on its machine; auto: the
    address of its way to other machines."""
    engine: RoleSettings = RoleSettings()
    trainer: RoleSettings = RoleSettings()
    rollout: RoleSettings = RoleSettings()
    max_restarts: int = Field(default=3, ge=0)
    """How often one process that died is started again before the run ends."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.host in ("0.0.0.0", "::"):
            raise ConfigError(f"host={self.host!r} is no address to be reached at; name one, or say auto")
        for name in ("engine", "trainer", "rollout"):
            if self.type == "local" and self.role(name).is_set("memory_gb"):
                raise ConfigError(f"{name}.memory_gb cannot act: type is 'local', where nothing is reserved; remove it")
        return self

    @property
    def address(self) -> str:
        """The head's address, found if it is not named."""
        return address_of_machine() if self.host == "auto" else self.host

    def role(self, name: str) -> RoleSettings:
        found: RoleSettings = getattr(self, name)
        return found
