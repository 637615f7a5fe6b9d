"""Finds the addresses under which other machines reach this one.

Knows: sockets.  Knows not: who asks.
"""

from __future__ import annotations

import socket

from ludus.errors import BackendError

_SOMEWHERE = ("192.0.2.1", 9)  # an address that nobody has (RFC 5737): the way there is the way to other machines


def address_towards(host: str, port: int) -> str:
    """This machine's address on the route to `host`; nothing is sent. Raises BackendError if there is no route."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, port))
        except OSError as error:
            raise BackendError(f"{host} cannot be reached from {socket.gethostname()}: {error}") from error
        address: str = probe.getsockname()[0]
    return address


def address_of_machine() -> str:
    """The address under which other machines most likely reach this one: that of its default route."""
    return address_towards(*_SOMEWHERE)


def free_port(host: str) -> int:
    """A port of `host`, an address of this machine, that is free at the moment."""
    with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        port: int = probe.getsockname()[1]
    return port
