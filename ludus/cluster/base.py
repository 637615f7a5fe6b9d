"""The interface of launchers: what they start, and the processes that they return.

Knows: commands, resources, exit statuses.  Knows not: what the processes do, or where any launcher puts them.
Invariants: when `stop` returns, the process and everything that it started have ended; its output is in its log in the
run's folder.
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
_TAIL_BYTES = 16_384  # some hundred lines, more than are shown


@dataclass(frozen=True, slots=True)
class Role:
    """Processes that run the same command, each with its own index."""

    name: str
    command: tuple[str, ...]
    """`--index I` is added for each process."""
    settings: RoleSettings
    """Resources and environment of each process."""
    count: int = 1
    cards: int = 0
    """Number of cards that a process computes on; without a reservation it gets that many of the machine's, in turn. 0:
    it sees all cards."""
    is_on_heads_card: bool = False
    """It computes on the head's card, which the two have in turns."""

    def argv(self, index: int) -> list[str]:
        return [*self.command, "--index", str(index)]

    def environment(self) -> dict[str, str]:
        """Variables added to the environment of the process: the settings' own, and as many threads as it has cores."""
        threads = str(max(1, int(self.settings.num_cpus)))
        return {"OMP_NUM_THREADS": threads, "PYTHONUNBUFFERED": "1", **self.settings.env}


def role_command(name: str, head_url: str) -> tuple[str, ...]:
    """The command of a role, which gets everything else from the head. Nothing is imported from the working directory
    except what the run names."""
    return (*PROGRAM, "role", name, "--head", head_url)


class RoleProcess(ABC):
    """A started process. Methods may block for some seconds."""

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
        """The launcher's name for it, such as 'pid 4711 on node3'."""

    @abstractmethod
    def poll(self) -> int | None:
        """Its exit status; negative: the signal that ended it. None: it is running, or waiting to be started."""

    @abstractmethod
    def stop(self, grace_s: float) -> None:
        """Ask it to end, and kill it after `grace_s`. Does nothing if it has ended."""

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
        """Start process `index` of the role; it may have to wait for resources.

        env: variables for this start only, including its key.
        Raises UserError if it could never run.
        """
        own, log = {**role.environment(), **env}, self._folder / "roles" / f"{role.name}-{index}.log"
        started = self._started[role.name, index] = self._begin(role, index, own, log)
        return started

    @abstractmethod
    def _begin(self, role: Role, index: int, env: Mapping[str, str], log: Path) -> RoleProcess:
        """env: variables added to the process's environment.  log: file for its output."""

    def close(self) -> None:
        """Release reserved resources; processes that are still running are ended."""
        for process in self._started.values():
            process.stop(0)
