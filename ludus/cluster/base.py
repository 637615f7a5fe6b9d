"""What a launcher is asked to start, and what it returns.

Knows: commands, resources, exit statuses.  Knows not: what the processes do, or where any launcher puts them.
Invariants: a process that was stopped has ended when `stop` returns, with all that it started; what it printed lies in
its log in the run's folder.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ludus.processes.files import OWNER_ALONE
from ludus.processes.placement import RoleSettings
from ludus.processes.program import PROGRAM

KEY_VARIABLE = "LUDUS_HEAD_KEY"
ATTEMPT_VARIABLE = "LUDUS_ROLE_ATTEMPT"
_TAIL_BYTES = 16_384  # some hundred lines, of which the last twenty are shown


@dataclass(frozen=True, slots=True)
class Role:
    """Processes that run one command, each with a number of its own."""

    name: str
    command: tuple[str, ...]
    """`--index I` is added for each process."""
    settings: RoleSettings
    """What each of them gets."""
    count: int = 1
    cards: int = 0
    """That one process computes on; whoever has none reserved gets as many of those that are there, in turn. 0: it
    sees all of them."""

    def argv(self, index: int) -> list[str]:
        return [*self.command, "--index", str(index)]

    def environment(self) -> dict[str, str]:
        """What the process finds in its environment besides what is there: as many threads as it has cores."""
        threads = str(max(1, int(self.settings.num_cpus)))
        return {"OMP_NUM_THREADS": threads, "PYTHONUNBUFFERED": "1", **self.settings.env}


def role_command(name: str, head_url: str) -> tuple[str, ...]:
    """The command of every role: it learns the rest from the head. Nothing is imported from where it is started but
    what the run names."""
    return (*PROGRAM, "role", name, "--head", head_url)


class RoleProcess(ABC):
    """One process that was started. Its methods may block for some seconds."""

    def __init__(self, log: Path) -> None:
        """log: in the run's folder."""
        self.log = log
        log.parent.mkdir(mode=OWNER_ALONE, parents=True, exist_ok=True)
        log.touch()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id})"

    @property
    @abstractmethod
    def id(self) -> str:
        """What its launcher calls it, such as 'pid 4711 on node3'."""

    @abstractmethod
    def poll(self) -> int | None:
        """Its exit status; below 0 the signal that ended it. None: it runs, or waits until it can."""

    @abstractmethod
    def stop(self, grace_s: float) -> None:
        """Ask it to end, and end it after `grace_s`. Does nothing where it has ended."""

    def tail(self, num_lines: int) -> str:
        """The last lines that it printed."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, self.log.stat().st_size - _TAIL_BYTES))
                text = file.read().decode("utf-8", "replace")
        except OSError:  # its folder was removed
            return ""
        return "\n".join(text.rstrip().splitlines()[-num_lines:])


class Launcher(ABC):
    """Starts processes somewhere. `start` may be called from any thread."""

    def __init__(self, folder: Path) -> None:
        """folder: the run's."""
        self._folder = folder
        self._started: dict[tuple[str, int], RoleProcess] = {}
        """The latest start of each process."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self._started)} processes, folder={str(self._folder)!r})"

    def start(self, role: Role, index: int, env: Mapping[str, str]) -> RoleProcess:
        """Begin process `index` of the role; it may have to wait until it can run.

        env: of this start alone, the key among it.
        Raises UserError where it could never run.
        """
        own, log = {**role.environment(), **env}, self._folder / "roles" / f"{role.name}-{index}.log"
        started = self._started[role.name, index] = self._begin(role, index, own, log)
        return started

    @abstractmethod
    def _begin(self, role: Role, index: int, env: Mapping[str, str], log: Path) -> RoleProcess:
        """env: what the process finds in its environment besides what is there.  log: where it prints to."""

    def close(self) -> None:
        """Give back what was reserved; processes that still run are ended."""
        for process in self._started.values():
            process.stop(0)
