"""What a launcher is asked to start, and what it returns.

Knows: commands, resources, exit statuses.  Knows not: what the processes do, or where any launcher puts them.
Invariants: a process that was stopped has ended when `stop` returns, with all that it started; what it printed lies in
its log in the run's folder.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from ludus.processes.placement import ResourceSettings

KEY_VARIABLE = "LUDUS_HEAD_KEY"
ATTEMPT_VARIABLE = "LUDUS_ROLE_ATTEMPT"
_TAIL_BYTES = 16_384  # some hundred lines, of which the last twenty are shown


@dataclass(frozen=True, slots=True)
class Resources:
    """Of one process."""

    cpus: float = 1.0
    gpus: float = 0.0
    memory_gb: float | None = None
    """None: no reservation."""

    @classmethod
    def of(cls, settings: ResourceSettings) -> Resources:
        return cls(settings.cpus, settings.gpus, settings.memory_gb)


@dataclass(frozen=True, slots=True)
class Role:
    """Processes that run one command, each with a number of its own."""

    name: str
    command: tuple[str, ...]
    """`--index I` is added for each process."""
    resources: Resources = Resources()
    count: int = 1
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to the environment."""

    @property
    def indices(self) -> range:
        return range(self.count)

    def argv(self, index: int) -> list[str]:
        return [*self.command, "--index", str(index)]

    def environment(self) -> dict[str, str]:
        """What the process finds in its environment besides what is there: as many threads as it has cores."""
        threads = str(max(1, int(self.resources.cpus)))
        return {"OMP_NUM_THREADS": threads, "PYTHONUNBUFFERED": "1", **self.env}


def role_command(name: str, head_url: str) -> tuple[str, ...]:
    """The command of every role: it learns the rest from the head."""
    return (sys.executable, "-m", "ludus", "role", name, "--head", head_url)


class RoleProcess(Protocol):
    """One process that was started. Its methods may block for some seconds."""

    @property
    def id(self) -> str:
        """What the place calls it, such as 'pid 4711 on node3'."""

    @property
    def log(self) -> Path:
        """In the run's folder."""

    def poll(self) -> int | None:
        """Its exit status; below 0 the signal that ended it. None: it runs, or waits for a place to run."""

    def stop(self, grace_s: float) -> None:
        """Ask it to end, and end it after `grace_s`. Does nothing where it has ended."""

    def tail(self, num_lines: int) -> str:
        """The last lines that it printed."""


class Launcher(Protocol):
    """Places processes somewhere. `start` may be called from any thread."""

    def start(self, role: Role, index: int, env: Mapping[str, str]) -> RoleProcess:
        """Begin process `index` of the role; it may have to wait for its place.

        env: of this start alone, the key among it.
        Raises UserError where no place could ever hold it.
        """

    def close(self) -> None:
        """Give back what was reserved; processes that still run are ended."""


def log_path(folder: Path, role: Role, index: int) -> Path:
    """Where a process prints to, below the run's folder."""
    return folder / "roles" / f"{role.name}-{index}.log"


def last_lines(path: Path, num_lines: int) -> str:
    """The end of a file, '' if there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(text.rstrip().splitlines()[-num_lines:])
