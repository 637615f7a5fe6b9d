"""A role's connection to the head of its run: fetches its task, announces its address, and sends heartbeats.

Knows: the head's registry.  Knows not: what the role does, who started it.
Invariant: a process whose head is gone, or has given it up, ends with everything that it started, even if its launcher
can no longer reach it.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx

from ludus.cluster.base import ATTEMPT_VARIABLE, KEY_VARIABLE
from ludus.errors import BackendError, UserError
from ludus.processes.address import address_towards

logger = logging.getLogger(__name__)

HEARTBEAT_S = 1.5  # the head gives a process up after five missed heartbeats
TIMEOUT_S = 5.0
MISSED_HEARTBEATS = 5
"""After this many consecutive failed heartbeats the head counts as gone. Counted, not timed: see `clock.py`."""
_GIVEN_UP = (httpx.codes.UNAUTHORIZED, httpx.codes.CONFLICT)
"""Statuses by which the head says that it no longer accepts this start of the process. Other errors may be temporary:
the head may be short of files or memory, or a proxy may answer in its place."""
_GRACE_S = 5.0  # for child processes, such as a server that writes its last lines


@dataclass(frozen=True, slots=True)
class RoleSpec:
    """Configuration and task of a process."""

    config: str
    """The run's configuration, as YAML."""
    task: Mapping[str, Any]


def end_process() -> None:
    """End this process and what it started: by SIGTERM, then by SIGKILL."""
    leads = os.getpgrp() == os.getpid()  # otherwise the group is not its own
    for number in (signal.SIGTERM, signal.SIGKILL):
        if leads:
            os.killpg(0, number)
        else:
            os.kill(os.getpid(), number)
        time.sleep(_GRACE_S)


class RoleClient(AbstractContextManager["RoleClient"]):
    """The client of one process of a run."""

    def __init__(self, head_url: str, key: str, name: str, index: int, *, attempt: int = 0) -> None:
        """attempt: how often it was started before."""
        self.head_url = head_url
        self.name = name
        self.index = index
        self.key = key
        self.attempt = attempt
        self._left = threading.Event()
        self._beating: threading.Thread | None = None
        """The thread that sends heartbeats. None: the process has not joined."""
        self._http = httpx.Client(
            base_url=head_url,
            headers={"authorization": f"Bearer {key}"},
            timeout=TIMEOUT_S,
            trust_env=False,  # use no proxy for the head
        )

    @classmethod
    def of_environment(cls, head_url: str, name: str, index: int, environment: Mapping[str, str]) -> RoleClient:
        """The client of a process started by a launcher. Raises UserError if the environment has no key."""
        key = environment.get(KEY_VARIABLE)
        if key is None:
            raise UserError(f"a role is started by a run, which puts its key into {KEY_VARIABLE}; it is not set")
        return cls(head_url, key, name, index, attempt=int(environment.get(ATTEMPT_VARIABLE, "0")))

    def __repr__(self) -> str:
        return f"RoleClient({self.name}-{self.index}, head={self.head_url})"

    @property
    def address(self) -> str:
        """This machine's address for the head: the local address of the route to it."""
        head = urlsplit(self.head_url)
        return address_towards(head.hostname or "127.0.0.1", head.port or 80)

    def role_spec(self) -> RoleSpec:
        """Fetch the task. Raises BackendError if the head cannot be reached, UserError if it refuses."""
        response = self._insist("GET", "/config", params={"role": self.name, "index": self.index})
        if response.is_error:
            raise UserError(f"the head at {self.head_url} refused {self.name}-{self.index}: {response.text[:300]}")
        answer = response.json()
        return RoleSpec(answer["config"], answer["task"])

    def join(
        self, url: str = "", info: Mapping[str, Any] | None = None, *, on_head_lost: Callable[[], None] = end_process
    ) -> None:
        """Report that this process is ready, and from now on send heartbeats on a separate thread.

        url: its address; '' if it takes no requests.  on_head_lost: called on that thread.
        Raises BackendError if the head cannot be reached, or a later start of this process has taken over.
        """
        process = {"attempt": self.attempt, "pid": os.getpid(), "host": socket.gethostname()}
        body = {**process, "url": url, "info": dict(info or {})}
        response = self._insist("POST", f"/roles/{self.name}/{self.index}", json=body)
        if response.is_error:
            raise BackendError(f"the head refused {self.name}-{self.index}: {response.text[:300]}")
        self._beating = threading.Thread(
            target=self._heartbeat, args=(on_head_lost,), name="ludus-heartbeat", daemon=True
        )
        self._beating.start()

    def leave(self) -> None:
        """Stop sending heartbeats. Leaving twice is allowed."""
        self._left.set()
        if self._beating is not None and self._beating is not threading.current_thread():
            self._beating.join()
        self._http.close()

    def __exit__(self, *_: object) -> None:
        self.leave()

    def _heartbeat(self, on_head_lost: Callable[[], None]) -> None:
        missed = 0
        while not self._left.wait(HEARTBEAT_S):
            try:
                body = {"attempt": self.attempt}
                status: int | None = self._ask("PUT", f"/roles/{self.name}/{self.index}/beat", json=body).status_code
            except BackendError:
                status = None
            missed = 0 if status is not None and httpx.codes.is_success(status) else missed + 1
            if missed == MISSED_HEARTBEATS or status in _GIVEN_UP:
                why = "cannot be reached" if status is None else f"answers {status}"
                logger.warning("the head at %s %s: %s-%d ends", self.head_url, why, self.name, self.index)
                on_head_lost()
                return

    def _insist(self, method: str, path: str, **options: Any) -> httpx.Response:
        """As `_ask`, repeated as often as heartbeats may fail, so that one lost answer does not end the process."""
        for _ in range(MISSED_HEARTBEATS - 1):
            with suppress(BackendError):
                response = self._ask(method, path, **options)
                if not response.is_server_error:
                    return response
            self._left.wait(HEARTBEAT_S)
        return self._ask(method, path, **options)

    def _ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Send a request. Raises BackendError if the head cannot be reached."""
        try:
            return self._http.request(method, path, **options)
        except httpx.HTTPError as error:
            raise BackendError(
                f"the head at {self.head_url} cannot be reached: {error or type(error).__name__}"
            ) from error
