"""The interface of launch targets, which start, watch and stop a training server on another machine.

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
    """A server that was started or joined."""

    key: str
    """The server's key."""
    is_new: bool
    """False: the server was running already, for this client or an earlier one, and was joined."""


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """The state of a server."""

    is_alive: bool
    """Whether it is running or queued."""
    words: str
    """The same in words: `job 12 is PENDING (Resources)`."""
    log: str
    """Its log, or the end of it."""
    server_address: ServerAddress | None
    """Its address. None: it has not announced it yet."""

    def last_lines(self, num_lines: int = 20) -> str:
        return "\n".join(self.log.splitlines()[-num_lines:])


class LaunchTarget(Protocol):
    """The launch target of one server. Methods block on the network, and may be called from any thread, one at a time.

    Each raises UnreachableError if the target cannot be reached now, and may then be called again.
    """

    name: str
    """Used in messages."""

    def start(self) -> Started:
        """Start or queue the server, unless it is running already. Raises BackendError if that fails."""

    def status(self) -> ServerStatus: ...

    def stop(self) -> None:
        """Stop the server; it has ended, or will. Unfinished jobs continue when its folder is served again."""

    def forward(self, local_port: int, server_address: ServerAddress) -> Sequence[str] | None:
        """The command of a tunnel, as for a shell. None: the server can be reached directly."""


class EndedError(BackendError):
    """The server has ended, and will not be restarted."""
