"""Who starts a server where the accelerator is, looks after it and ends it: the protocol of launch targets.

Knows: what a launch target does.  Knows not: ssh, clusters, HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ludus.cluster.remote.server_address import ServerAddress
from ludus.errors import BackendError


@dataclass(frozen=True, slots=True)
class Started:
    """A server that was asked for."""

    key: str
    """What it is asked with."""
    is_new: bool
    """False: it ran already, for us or for an earlier client that has ended, and is joined."""


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """How a server is."""

    is_alive: bool
    """It runs, or waits for its turn to."""
    words: str
    """The same for people: `job 12 is PENDING (Resources)`."""
    log: str
    """All that it has written, or the newer part of it."""
    server_address: ServerAddress | None
    """Where it listens. None: it has not said so yet."""

    def last_lines(self, num_lines: int = 20) -> str:
        return "\n".join(self.log.splitlines()[-num_lines:])


class LaunchTarget(Protocol):
    """One server's. Its methods take as long as a network needs, and may be called from any thread, one at a time.

    Each raises UnreachableError where nobody can be asked now, and may be called again.
    """

    name: str
    """What messages call it."""

    def start(self) -> Started:
        """Sees to it that the server runs, or waits for its turn to. Raises BackendError if that cannot be."""

    def status(self) -> ServerStatus: ...

    def stop(self) -> None:
        """Return once the server has ended or will; jobs that are not done are done when its folder is served again."""

    def forward(self, local_port: int, server_address: ServerAddress) -> Sequence[str] | None:
        """As a shell's. None: the server can be reached from here."""


class EndedError(BackendError):
    """The server has ended, and will not come back by itself."""
