"""Addresses and interfaces of this machine."""

from __future__ import annotations

import socket
import struct
from types import SimpleNamespace

import pytest

from ludus.processes import address
from ludus.processes.address import interface_towards


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_this_machine_alone_is_reached_by_its_loopback(host: str) -> None:
    """By name as by address."""
    assert interface_towards(host) in ("lo", "lo0")


def test_others_are_reached_by_the_interface_with_the_address_of_the_route(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this machine's own name leads to; none is named where none has that address."""
    of_names = {"lo": "127.0.0.1", "docker0": "172.17.0.1", "ib0": "10.1.0.5"}

    def ioctl(_: int, request: int, asked: bytes) -> bytes:
        name = struct.unpack("16s240x", asked)[0].rstrip(b"\0").decode()
        if name not in of_names:
            raise OSError("no address")
        return bytes(20) + socket.inet_aton(of_names[name]) + bytes(232)

    monkeypatch.setattr(address, "fcntl", SimpleNamespace(ioctl=ioctl))
    monkeypatch.setattr(address.sys, "platform", "linux")
    monkeypatch.setattr(socket, "if_nameindex", lambda: list(enumerate(("lo", "eth9", "docker0", "ib0"), start=1)))
    for own, expected in (("10.1.0.5", "ib0"), ("10.1.0.6", None)):
        monkeypatch.setattr(address, "address_towards", lambda host, port, own=own: own)
        assert interface_towards("head.cluster") == expected


def test_a_host_without_a_route_has_no_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks takes what it would have taken."""

    def no_route(*_: object) -> str:
        raise address.BackendError("no route")

    monkeypatch.setattr(address, "address_towards", no_route)
    assert interface_towards("nowhere.invalid") is None
