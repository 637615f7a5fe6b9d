"""Captures the output of a process within bounds: the beginning and the end of each stream.

Knows: file descriptors, bytes.  Knows not: processes, calls.
Invariant: a stream of any length takes at most `max_bytes` of memory, and its writer never waits for a reader.
"""

from __future__ import annotations

import os
from collections import deque

_READ_BYTES = 1 << 16  # what a pipe of Linux holds
# Share kept of the beginning: an error is at the end, what led to it at the beginning.
_HEAD_SHARE = 0.25


class Capture:
    """One stream, for one call after another."""

    def __init__(self, fd: int, max_bytes: int) -> None:
        """fd: closed by `close`; it must not block."""
        self.fd = fd
        self._max_head = int(max_bytes * _HEAD_SHARE)
        self._max_tail = max_bytes - self._max_head
        self._is_open = True
        self.clear()

    def clear(self) -> None:
        """Forget what was read."""
        self.num_bytes = 0
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._num_tail_bytes = 0

    def drain_nowait(self) -> bool:
        """Read what is available, once. False: the stream has ended."""
        if not self._is_open:
            return False
        try:
            data = os.read(self.fd, _READ_BYTES)
        except BlockingIOError:
            return True
        self._add(data)
        self._is_open = bool(data)
        return self._is_open

    def text(self) -> str:
        """The kept text, with a note of the number of bytes left out in the middle."""
        tail = b"".join(self._tail)[-self._max_tail :] if self._max_tail else b""
        left_out = self.num_bytes - len(self._head) - len(tail)
        middle = f"\n… {left_out} bytes left out …\n" if left_out else ""
        return self._head.decode(errors="replace") + middle + tail.decode(errors="replace")

    def close(self) -> None:
        self._is_open = False
        os.close(self.fd)

    def _add(self, data: bytes) -> None:
        self.num_bytes += len(data)
        room = self._max_head - len(self._head)
        self._head += data[:room]
        data = data[room:]
        if not data:
            return
        self._tail.append(data)
        self._num_tail_bytes += len(data)
        while self._num_tail_bytes - len(self._tail[0]) >= self._max_tail:
            self._num_tail_bytes -= len(self._tail.popleft())
