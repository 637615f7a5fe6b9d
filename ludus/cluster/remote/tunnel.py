"""Keeps a tunnel open from a fixed port of this machine, by restarting the command that forwards connections.

Knows: a forwarding command, when to restart it.  Knows not: what is transferred, what runs there.
Invariants: the command ends with this process, however that ends; while it cannot be started, the reason is known.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import IO

logger = logging.getLogger(__name__)

FIRST_WAIT_S, LONGEST_WAIT_S = 0.2, 15.0
STABLE_S = 10.0  # after a connection that lasted this long, the next is tried at once
OPEN_S = 60.0
STOP_S = 5.0


class Tunnel:
    """Keeps `command` running from `open` to `close`. It must print a line when connected, and end with its stdin."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = tuple(command)
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._is_closed = threading.Event()
        self._has_tried = threading.Event()
        self.why_closed: str | None = "it was not opened"
        """Why the tunnel is not connected now. None: it is."""
        self.num_opened = 0
        """How often it was connected."""
        self._thread = threading.Thread(target=self._keep, name="ludus-tunnel", daemon=True)

    def __repr__(self) -> str:
        return f"Tunnel({'open' if self.why_closed is None else repr(self.why_closed)}, opened={self.num_opened})"

    def open(self) -> str | None:
        """Wait for the first attempt. Returns why it failed, or None; in either case attempts continue."""
        self._thread.start()
        self._has_tried.wait(OPEN_S)
        return self.why_closed

    def close(self) -> None:
        """Closing twice is allowed, as is closing a tunnel that was never opened."""
        with self._lock:
            self._is_closed.set()
            process = self._process
        if process is not None:
            process.terminate()
        if self._thread.is_alive():
            self._thread.join()

    def _keep(self) -> None:
        wait_s = FIRST_WAIT_S
        while not self._is_closed.is_set():
            began_at = time.monotonic()
            with tempfile.TemporaryFile() as errors:
                self._carry(errors)
                errors.seek(0)
                why = errors.read().decode(errors="replace").strip()
            self.why_closed = why or "the connection was closed"
            self._has_tried.set()
            if self._is_closed.is_set():
                break
            logger.info("tunnel.closed why=%s", self.why_closed)
            wait_s = FIRST_WAIT_S if time.monotonic() - began_at > STABLE_S else min(2 * wait_s, LONGEST_WAIT_S)
            self._is_closed.wait(wait_s)

    def _carry(self, errors: IO[bytes]) -> None:
        """Run one connection from its start to its end."""
        with self._lock:
            if self._is_closed.is_set():
                return
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                process_group=0,  # Ctrl-C in the terminal goes to this process only
            )
            self._process = process
        assert process.stdin is not None and process.stdout is not None
        try:
            if os.read(process.stdout.fileno(), 64):
                self.why_closed = None
                self.num_opened += 1
                logger.info("tunnel.open command=%s", self._command[0])
                self._has_tried.set()
            process.wait()
        finally:
            with self._lock:
                self._process = None
            for stream in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    stream.close()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
