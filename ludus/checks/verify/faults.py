"""Injects faults into a process from outside: kill, SIGTERM, stop, loss of network, full disk.

Knows: Linux's system calls for one's own processes.  Knows not: what the processes do, how victims are chosen.
No fault needs root: connections are shut down through copies of the process's descriptors, which the kernel gives to
processes that may trace it, such as its ancestors.
"""

from __future__ import annotations

import ctypes
import os
import random
import resource
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path

from ludus.checks.preload import compile_preloaded

_SECONDS = struct.Struct("q")
_DAY_S = 86_400
_PIDFD_GETFD = 438  # on every architecture
_EVERY_S = 0.02
"""Interval at which connections are shut down while the network is cut; new ones can send some packets before that."""


def kill(pid: int, _for_s: float) -> None:
    os.kill(pid, signal.SIGKILL)


def terminate(pid: int, _for_s: float) -> None:
    os.kill(pid, signal.SIGTERM)


def stop(pid: int, for_s: float) -> None:
    """Stop the process for `for_s` seconds, then continue it if it still exists."""
    os.kill(pid, signal.SIGSTOP)
    time.sleep(for_s)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def cut(pid: int, for_s: float) -> None:
    """Shut down all its existing and new connections for `for_s` seconds. Raises PermissionError if that is
    forbidden."""
    until = time.monotonic() + for_s
    with closing(_PidFd(pid)) as process, suppress(ProcessLookupError, FileNotFoundError):  # it may end meanwhile
        while time.monotonic() < until:
            for connection in process.connections():
                with connection, suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            time.sleep(_EVERY_S)


def fill_disk(pid: int, for_s: float) -> None:
    """Let no file of it grow for `for_s` seconds, as on a full disk."""
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, before[1]))
    time.sleep(for_s)
    for each in (pid, *descendants(pid)):  # processes that it started meanwhile inherited the limit
        with suppress(ProcessLookupError):
            resource.prlimit(each, resource.RLIMIT_FSIZE, before)


FAULTS: Mapping[str, Callable[[int, float], None]] = {
    "kill": kill,
    "terminate": terminate,
    "stop": stop,
    "cut": cut,
    "disk": fill_disk,
}
"""All faults by name. Each takes a pid and a duration, returns when the fault is over, and raises ProcessLookupError if
the process does not exist at its beginning."""


class Clock:
    """A system clock for all processes with its environment, which can jump for all of them at once."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        """folder: for the preloaded library. Raises BackendError if that cannot be compiled."""
        self._file, self._rng = folder / "clock", rng
        self._file.write_bytes(_SECONDS.pack(0))
        library = compile_preloaded(Path(__file__).with_name("clock.cpp"), folder)
        self.environment: Mapping[str, str] = {"LD_PRELOAD": str(library), "LUDUS_CHECK_CLOCK": str(self._file)}

    def jump(self, _pid: int, for_s: float) -> None:
        """Jump by up to a day, forwards or backwards, and back after `for_s` seconds."""
        self._file.write_bytes(_SECONDS.pack(self._rng.randint(-_DAY_S, _DAY_S)))
        time.sleep(for_s)
        self._file.write_bytes(_SECONDS.pack(0))


def descendants(pid: int) -> Iterator[int]:
    """Its current child processes, and theirs, recursively."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # the process has ended meanwhile
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                parents.setdefault(int(parent), []).append(int(stat.parent.name))
    waiting = parents.get(pid, [])
    while waiting:
        child = waiting.pop()
        yield child
        waiting.extend(parents.get(child, []))


class _PidFd:
    """A process by a pidfd, which, unlike a pid, is never reused."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = os.pidfd_open(pid)

    def close(self) -> None:
        os.close(self._fd)

    def connections(self) -> Iterator[socket.socket]:
        """Copies of its TCP connections, without listening sockets."""
        for link in Path(f"/proc/{self._pid}/fd").glob("*"):
            try:
                if not str(link.readlink()).startswith("socket:"):
                    continue
                copied = socket.socket(fileno=self._copy(int(link.name)))
            except FileNotFoundError:
                continue
            is_listening = copied.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            if copied.family in (socket.AF_INET, socket.AF_INET6) and not is_listening:
                yield copied
            else:
                copied.close()

    def _copy(self, number: int) -> int:
        found = self._libc.syscall(_PIDFD_GETFD, self._fd, number, 0)
        if found < 0:
            code = ctypes.get_errno()
            if code == 9:  # EBADF: closed meanwhile
                raise FileNotFoundError(code, os.strerror(code))
            raise OSError(code, os.strerror(code))
        return int(found)
