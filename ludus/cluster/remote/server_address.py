"""A server's address, which the server announces in its log, and from which its launcher reads it.

Knows: one line of JSON, addresses of this machine.  Knows not: launchers.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import httpx

from ludus.errors import BackendError
from ludus.http.keys import is_loopback
from ludus.processes.address import address_of_machine

_FIELDS = {"url", "host", "port", "pid"}


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where a server listens."""

    host: str
    """127.0.0.1 if it accepts only connections from its own machine, else an address of that machine."""
    port: int

    @classmethod
    def find(cls, log: str) -> Self | None:
        """The last address announced in a log. None: none yet."""
        for line in reversed(log.splitlines()):
            if line.startswith("{"):
                try:
                    found = json.loads(line)
                except ValueError:
                    continue
                if isinstance(found, dict) and found.keys() == _FIELDS:
                    return cls(str(found["host"]), int(found["port"]))
        return None


def announcement(url: str, host: str) -> Mapping[str, Any]:
    """The announcement of a server that listens on `host`, to be logged as one line of JSON."""
    try:
        shown = "127.0.0.1" if is_loopback(host) else address_of_machine()
    except BackendError:  # this machine has no network
        shown = socket.gethostname()
    return {"url": url, "host": shown, "port": httpx.URL(url).port, "pid": os.getpid()}
