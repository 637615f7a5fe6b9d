"""Finds the addresses under which other machines reach this one, and the network interfaces that have them.

Knows: sockets.  Knows not: who asks.
"""

from __future__ import annotations

import fcntl
import socket
import struct
import sys
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path

from ludus.errors import BackendError

_SOMEWHERE = ("192.0.2.1", 9)  # an address that nobody has (RFC 5737): the way there is the way to other machines
_LOOPBACK = ("lo", "lo0")
# In Linux's sockios.h: the address of an interface, which lies at this place of the answer, behind a name and a port.
_SIOCGIFADDR, _ADDRESS, _NAME_BYTES = 0x8915, slice(20, 24), 15
_ADDRESSES_6 = Path("/proc/net/if_inet6")


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


def interface_towards(host: str) -> str | None:
    """The network interface, by name, with this machine's address on the route to `host`, a name or an address. None:
    not known.

    A name of this machine may lead to its loopback address, though other machines reach it under another.
    """
    try:
        address = ip_address(address_towards(host, _SOMEWHERE[1]).partition("%")[0])
    except BackendError:
        return None
    names = [name for _, name in socket.if_nameindex()]
    if address.is_loopback:
        return next((name for name in names if name in _LOOPBACK), None)
    if not sys.platform.startswith("linux"):
        return None
    if address.version == 6:
        with suppress(OSError):
            for line in _ADDRESSES_6.read_text().splitlines():
                number, *_, name = line.split()
                if number == address.packed.hex():
                    return name
        return None
    return next((name for name in names if _address_of(name) == address.packed), None)


def _address_of(interface: str) -> bytes | None:
    """Its first address of version 4. None: it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        asked = struct.pack("256s", interface.encode()[:_NAME_BYTES])
        return fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, asked)[_ADDRESS]
    return None
