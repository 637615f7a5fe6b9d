"""The order of things around a launched server, at a target whose answers are scripted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from ludus.cluster.remote.base import EndedError, ServerStatus, Started
from ludus.cluster.remote.server import LaunchedServer
from ludus.cluster.remote.server_address import ServerAddress
from ludus.cluster.remote.settings import LaunchSettings
from ludus.cluster.remote.shell import UnreachableError
from ludus.errors import BackendError

WAITS = ServerStatus(is_alive=True, words="it waits", log="", server_address=None)
SERVES = ServerStatus(
    is_alive=True, words="it runs", log="loading\nserving\n", server_address=ServerAddress("node", 4000)
)
ENDED = ServerStatus(is_alive=False, words="it has ended", log="loading\nout of memory\n", server_address=None)
AWAY = UnreachableError("the network is down")


@dataclass
class WrittenReply:
    """A target that answers what is scripted, the last again and again."""

    statuses: list[ServerStatus | Exception]
    is_new: bool = True
    error: Exception | None = None
    """What ending it raises. None: it ends."""
    asked: list[str] = field(default_factory=list)
    name: str = "a target"

    def start(self) -> Started:
        return Started("key", self.is_new)

    def status(self) -> ServerStatus:
        self.asked.append("status")
        found = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        if isinstance(found, Exception):
            raise found
        return found

    def stop(self) -> None:
        self.asked.append("stop")
        if self.error is not None:
            raise self.error

    def forward(self, local_port: int, server_address: ServerAddress) -> Sequence[str] | None:
        return None


def launch(target: WrittenReply, **settings: float) -> tuple[LaunchedServer, list[str]]:
    told: list[str] = []
    server = LaunchedServer(target, LaunchSettings(**settings), told.append, clock=lambda: 0.0)
    server.open()
    return server, told


def test_a_network_that_is_down_is_waited_for() -> None:
    """While the server starts; it is told, and the log goes on where it was."""
    target = WrittenReply([WAITS, AWAY, AWAY, SERVES])
    server, told = launch(target)
    assert server.base_url == "http://node:4000"
    assert told == ["it waits", "the network is down", "it runs", "loading", "serving"]


def test_whoever_waits_asks_for_all() -> None:
    """One poll does for all requests of the next seconds, and one that has ended is told to each."""
    target = WrittenReply([SERVES])
    server, _ = launch(target)
    target.statuses, target.asked = [AWAY], []
    server.check()
    target.statuses = [SERVES]
    for _ in range(5):
        server.check()
    assert target.asked == ["status", "status"]
    ended, _ = launch(WrittenReply([SERVES, ENDED]))
    for _ in range(2):
        with pytest.raises(EndedError, match="out of memory"):
            ended.check()


@pytest.mark.parametrize(("is_new", "ends"), [(True, ["stop"]), (False, [])])
def test_what_cannot_be_reached_is_left_as_it_was(is_new: bool, ends: list[str]) -> None:
    """One that was started is stopped, one that was joined goes on."""
    target = WrittenReply([ENDED], is_new=is_new)
    with pytest.raises(EndedError, match="ended before it served"):
        launch(target)
    assert [word for word in target.asked if word != "status"] == ends


def test_who_cannot_end_it_is_told_what_becomes_of_it() -> None:
    """And may try again; once it has ended nothing more is asked."""
    target = WrittenReply([SERVES], error=AWAY)
    server, _ = launch(target, idle_s=300)
    with pytest.raises(BackendError, match=r"could not be told to end: the network is down.*nothing to do for 300 s"):
        server.close()
    target.error = None
    server.close()
    server.close()
    assert target.asked.count("stop") == 2
