"""Manages a server that is launched for one client: starts it, connects to it, watches it and stops it.

Knows: a launch target, a tunnel.  Knows not: ssh, clusters, what is asked of the server.
Invariants: a server that was started but cannot be reached is stopped again; the local address stays the same while the
server lives, however often the connection breaks.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from ludus.cluster.remote.base import EndedError, LaunchTarget, ServerStatus
from ludus.cluster.remote.server_address import ServerAddress
from ludus.cluster.remote.settings import LaunchSettings
from ludus.cluster.remote.shell import UnreachableError
from ludus.cluster.remote.tunnel import Tunnel
from ludus.errors import BackendError
from ludus.processes.address import free_port

logger = logging.getLogger(__name__)

FIRST_POLL_S, LONGEST_POLL_S = 0.2, 5.0
SECONDS_BETWEEN_POLLS = 2.0  # hundreds of requests may wait for one server
Clock = Callable[[], float]
OnLine = Callable[[str], None]
"""Called with each line of the server's log until it serves, and with its state while it is queued."""


class LaunchedServer:
    """A training server at `target`. Methods block, and may be called from any thread."""

    def __init__(
        self, target: LaunchTarget, settings: LaunchSettings, on_line: OnLine, *, clock: Clock = time.monotonic
    ) -> None:
        self._target = target
        self._settings = settings
        self._on_line = on_line
        self._clock = clock
        self._tunnel: Tunnel | None = None
        self._given_up = threading.Event()
        self._asking = threading.Lock()
        self._seen_at = float("-inf")
        self._is_new = False
        self._shown = ""
        self._is_stopped = False
        self.base_url = ""
        self.key = ""

    def __repr__(self) -> str:
        return f"LaunchedServer({self._target!r}, {self.base_url or 'not reached yet'})"

    def open(self) -> None:
        """Start the server, and wait until it answers at `base_url` with `key`. Raises BackendError if that fails."""
        started = self._target.start()
        self.key, self._is_new = started.key, started.is_new
        logger.info("launch.%s target=%s", "started" if started.is_new else "joined", self._target.name)
        try:
            self.base_url = self._reach(self._wait())
        except BaseException:
            self.undo()
            raise

    def give_up(self) -> None:
        """Make `open`, which runs on another thread, raise soon."""
        self._given_up.set()

    def check(self) -> None:
        """Raises EndedError if the server has ended; not if its state cannot be found out now."""
        with self._asking:
            if self._clock() - self._seen_at < SECONDS_BETWEEN_POLLS:
                return
            try:
                seen = self._target.status()
            except UnreachableError as error:
                logger.debug("status.failed error=%s", error)
                return
            self._seen_at = self._clock()
        if not seen.is_alive:
            self._seen_at = float("-inf")  # check again at the next call, so that every caller gets this error
            raise EndedError(
                f"the server on {self._target.name} has ended ({seen.words}). Launch it again with "
                f"folder={self._settings.folder!r}: the models and the jobs are there. It wrote last:\n"
                f"{seen.last_lines()}"
            )

    @property
    def why_unreachable(self) -> str | None:
        """The known reason why the server cannot be reached now. None: no reason is known."""
        return None if self._tunnel is None else self._tunnel.why_closed

    def undo(self) -> None:
        """Undo `open`: stop the server, unless it was joined."""
        if self._is_new:
            self.close()
        else:
            self._leave()

    def close(self) -> None:
        """Stop the server. Closing twice is allowed. Raises BackendError if it cannot be reached for that."""
        self._leave()
        with self._asking:
            if self._is_stopped:
                return
            try:
                self._target.stop()
            except UnreachableError as error:
                raise BackendError(
                    f"the server on {self._target.name} could not be told to end: {error}. It ends by itself when it "
                    f"has had nothing to do for {self._settings.idle_s:g} s"
                ) from error
            self._is_stopped = True
        logger.info("launch.stopped target=%s", self._target.name)

    # ---- inside

    def _leave(self) -> None:
        if self._tunnel is not None:
            self._tunnel.close()
            self._tunnel = None

    def _wait(self) -> ServerAddress:
        timeout_s = self._settings.start_timeout_s
        until = None if timeout_s is None else self._clock() + timeout_s
        poll_s, words = FIRST_POLL_S, ""
        while True:
            try:
                seen = self._target.status()
            except UnreachableError as error:  # a broken connection does not mean that the server has ended
                seen = ServerStatus(is_alive=True, words=str(error), log=self._shown, server_address=None)
            self._report_lines(seen, words)
            words = seen.words
            last = f"It wrote last:\n{seen.last_lines()}"
            if not seen.is_alive:
                raise EndedError(f"the server on {self._target.name} ended before it served ({seen.words}). {last}")
            if seen.server_address is not None:
                return seen.server_address
            if until is not None and self._clock() > until:
                raise BackendError(
                    f"the server on {self._target.name} does not serve after {timeout_s:g} s ({seen.words}); give it "
                    f"more with start_timeout_s=…, or None for ever. {last}"
                )
            if self._given_up.wait(poll_s):
                raise BackendError("the launch was given up")
            poll_s = min(2 * poll_s, LONGEST_POLL_S)

    def _reach(self, server_address: ServerAddress) -> str:
        port = free_port("127.0.0.1")
        command = self._target.forward(port, server_address)
        if command is None:
            return f"http://{server_address.host}:{server_address.port}"
        self._tunnel = Tunnel(command)
        why = self._tunnel.open()
        if why is not None:
            raise BackendError(
                f"no tunnel to {server_address.host}:{server_address.port} through {self._target.name}: {why}"
            )
        return f"http://127.0.0.1:{port}"

    def _report_lines(self, seen: ServerStatus, words: str) -> None:
        new = seen.log.removeprefix(self._shown)
        whole = new[: new.rfind("\n") + 1]
        self._shown = seen.log[: len(seen.log) - len(new) + len(whole)]
        for line in [*([] if seen.words == words else [seen.words]), *whole.splitlines()]:
            self._on_line(line)
