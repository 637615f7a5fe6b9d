"""Whether anybody still needs a server: requests of those who have its key, and jobs.

Knows: requests that come and go, time.  Knows not: what is asked, what a job does.
Invariant: a server with a job that is not done, or with a request that is being answered, is not idle.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLLS = 8  # in the time that a server may be idle: it ends at most an eighth later
MOST_SECONDS_BETWEEN_POLLS = 10.0
_NOBODY = 401  # the answer to one without the key: strangers who knock do not keep a device busy
Clock = Callable[[], float]


class Activity:
    """An application, watched. `is_busy`: there is work besides requests; called on a thread."""

    def __init__(
        self, app: ASGIApp, *, is_busy: Callable[[], bool], ignored: tuple[str, ...] = (), clock: Clock = time.monotonic
    ) -> None:
        """ignored: paths that are asked by machines that only watch."""
        self._app = app
        self._is_busy = is_busy
        self._ignored = ignored
        self._clock = clock
        self._num_running = 0
        self._used_at = clock()

    @property
    def idle_s(self) -> float:
        """How long no request was answered."""
        return 0.0 if self._num_running else self._clock() - self._used_at

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in self._ignored:
            await self._app(scope, receive, send)
            return
        used_at, status = self._used_at, 0

        async def watched(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        self._num_running += 1
        try:
            await self._app(scope, receive, watched)
        finally:
            self._num_running -= 1
            self._used_at = max(self._used_at, used_at if status == _NOBODY else self._clock())

    async def wait_idle(self, idle_s: float) -> None:
        """Wait until for so long no request was answered and no job was there to be done."""
        while True:
            if await asyncio.to_thread(self._is_busy):
                self._used_at = self._clock()
            if self.idle_s >= idle_s:
                return
            await asyncio.sleep(min(idle_s / POLLS, MOST_SECONDS_BETWEEN_POLLS))
