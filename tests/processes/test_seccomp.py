"""The filter of system calls: its program by the kernel's rules, and its numbers by the kernel's own headers."""

from __future__ import annotations

import struct

import pytest

from ludus.processes import seccomp
from ludus.processes.seccomp import filter_program

ALLOW, EPERM, ENOSYS, EAFNOSUPPORT, KILL = 0x7FFF0000, 0x50001, 0x50026, 0x50061, 0x80000000
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


def verdict(machine: str, number: int, *arguments: int, architecture: int | None = None) -> int:
    """What the program returns for a call, by an interpreter of classic BPF."""
    padded = (*arguments, *([0] * (6 - len(arguments))))
    data = struct.pack("=IIQ6Q", number, architecture or ARCHITECTURES[machine], 0, *padded)
    program = list(struct.iter_unpack("=HBBI", filter_program(machine) or b""))
    at, held = 0, 0
    while True:
        code, yes, no, value = program[at]
        at += 1
        if code == 0x06:
            return value
        if code == 0x20:
            (held,) = struct.unpack_from("=I", data, value)
            continue
        holds = {0x15: held == value, 0x35: held >= value, 0x45: bool(held & value)}[code]
        at += yes if holds else no


@pytest.mark.parametrize(
    ("machine", "number", "arguments", "expected"),
    [
        ("x86_64", 0, (), ALLOW),  # read
        ("x86_64", 59, (), ALLOW),  # execve
        ("x86_64", 165, (), EPERM),  # mount
        ("aarch64", 40, (), EPERM),  # mount
        ("aarch64", 165, (), ALLOW),  # getrusage
        ("x86_64", 90, (), ALLOW),  # chmod, which the mounts refuse
        ("x86_64", 435, (), ENOSYS),  # clone3
        ("x86_64", 56, (17,), ALLOW),  # fork
        ("x86_64", 56, (0x10000000 | 17,), EPERM),  # a child in a user namespace
        ("aarch64", 220, (0x00020000 | 17,), EPERM),
        ("x86_64", 41, (1,), ALLOW),  # AF_UNIX
        ("x86_64", 41, (2,), ALLOW),
        ("x86_64", 41, (10,), ALLOW),
        ("x86_64", 41, (40,), EAFNOSUPPORT),  # AF_VSOCK
        ("x86_64", 16, (1, 0x5412), EPERM),  # TIOCSTI
        ("x86_64", 16, (1, 0x5401), ALLOW),  # TCGETS
        ("x86_64", 302, (0,), ALLOW),  # limits of its own
        ("x86_64", 302, (1,), EPERM),
        ("x86_64", 0x40000000, (), KILL),  # read, with 32-bit addresses
    ],
)
def test_calls_go_through_or_not(machine: str, number: int, arguments: tuple[int, ...], expected: int) -> None:
    """By number, and where it matters by argument."""
    assert verdict(machine, number, *arguments) == expected


def test_calls_of_another_architecture_end_the_process() -> None:
    """32-bit calls have other numbers."""
    assert verdict("x86_64", 3, architecture=0x40000003) == KILL


def test_an_unknown_architecture_has_no_filter() -> None:
    """And so no walls."""
    assert filter_program("riscv64") is None


def test_the_program_fits_the_kernel() -> None:
    """At most 4096 instructions; new calls have one number everywhere."""
    assert all(len(filter_program(machine) or b"") // 8 < 4096 for machine in ARCHITECTURES)
    assert all(isinstance(call, tuple) or call >= 424 for call in seccomp._REFUSED.values())
