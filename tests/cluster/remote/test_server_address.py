"""The line in a log that says where a server listens."""

from __future__ import annotations

import json
import os

from ludus.cluster.remote import announcement
from ludus.cluster.remote.server_address import ServerAddress
from ludus.processes.address import address_of_machine


def test_what_is_announced_is_found() -> None:
    """The last of them, among lines of all kinds."""
    first, second = (json.dumps(announcement(f"http://127.0.0.1:{port}", "127.0.0.1")) for port in (4000, 4001))
    log = f"loading\n{first}\n{{not JSON\n[1]\n{second}\n" + '{"url": "http://elsewhere"}\nserving\n'
    assert ServerAddress.find(log) == ServerAddress("127.0.0.1", 4001)
    assert ServerAddress.find("loading\n{}\n") is None


def test_others_are_told_an_address_that_they_reach() -> None:
    """Of a server that takes them; who listens on loopback says so."""
    told = announcement("http://127.0.0.1:4000", "0.0.0.0")
    assert told == {
        "url": "http://127.0.0.1:4000",
        "host": address_of_machine(),
        "port": 4000,
        "pid": os.getpid(),
    }
    assert announcement("http://[::1]:4000", "::1")["host"] == "127.0.0.1"
