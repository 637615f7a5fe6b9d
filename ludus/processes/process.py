"""One worker process from its owner's side: starts it, sends calls, watches and kills it.

Knows: processes, sockets, deadlines.  Knows not: who calls, how many processes there are.
Invariants: if a call exceeds its deadline, its process and everything that this started are killed; a process that
ended has been waited for.
"""

from __future__ import annotations

import os
import pickle
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ludus.errors import InternalError
from ludus.processes.calls import CallEnd, Crashed, Output, Raised, Returned, TimedOut, WorkerCall
from ludus.processes.capture import Capture
from ludus.processes.ended import exit_code, how_it_ended, kill_group

_CHILD = Path(__file__).with_name("child.py")
# The end of a process that forked is not heard on its pipes, which its child holds open; so often it is looked for.
_POLL_S = 0.2
# A process that was told to end is killed, which takes the kernel milliseconds.
_REAP_S = 10.0
# Between the end of its socket and its own end a process needs about this long.
_ENDING_S = 0.002


class WorkerProcess:
    """One process. `run` may be used by one thread at a time, `kill` by any."""

    def __init__(self, *, env: Mapping[str, str], output_bytes: int, start_timeout_s: float) -> None:
        """env: the complete environment of the process.  output_bytes: output kept of each stream.

        start_timeout_s: for starting, and for loading a function.
        """
        self._start_timeout_s = start_timeout_s
        self._has: set[str] = set()
        """Ids of the functions loaded in the process."""
        self._lock = threading.Lock()
        """Held while the process is signalled or waited for, so that its pid cannot be reused meanwhile."""
        self._received = bytearray()
        ours, theirs = socket.socketpair()
        with theirs:
            self._popen = subprocess.Popen(
                [sys.executable, "-P", str(_CHILD), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=dict(env),
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # a group of its own: killed with its children, deaf to the terminal's Ctrl-C
                bufsize=0,
            )
        self.pid = self._popen.pid
        assert self._popen.stdout is not None and self._popen.stderr is not None, "both are pipes"
        self._control = ours
        self._streams = tuple(
            Capture(os.dup(pipe.fileno()), output_bytes) for pipe in (self._popen.stdout, self._popen.stderr)
        )
        self._popen.stdout.close()
        self._popen.stderr.close()
        for stream in self._streams:
            os.set_blocking(stream.fd, False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._control, selectors.EVENT_READ)
        for stream in self._streams:
            self._selector.register(stream.fd, selectors.EVENT_READ, stream)
        self._control.settimeout(start_timeout_s)
        self._send_nowait((list(sys.path),))

    def __repr__(self) -> str:
        return f"WorkerProcess(pid={self._popen.pid}, alive={self.is_alive}, functions={len(self._has)})"

    @property
    def is_alive(self) -> bool:
        return self._popen.returncode is None

    def run(self, call: WorkerCall) -> CallEnd:
        """Run the call; returns how it ended. After a timeout or crash the process is dead."""
        for stream in self._streams:
            stream.drain_nowait()
            stream.clear()  # what threads of an earlier call printed after its end belongs to no call
        remote, is_kept = call.function, call.is_kept
        payload = None if remote.id in self._has else remote.payload
        request = (remote.id, payload, remote.is_factory, is_kept, call.arguments, dict(call.env))
        loading = self._answer(self._start_timeout_s) if self._send_nowait(request) else self._crashed()
        if isinstance(loading, tuple) and loading[0] == "started":
            if is_kept:
                self._has.add(remote.id)
            answer = self._answer(call.timeout_s)
        else:
            answer = loading
        return CallEnd(_ending(answer) if isinstance(answer, tuple) else answer, self._output())

    def kill(self) -> None:
        """Kill the process and everything that it started. Does nothing if it has ended."""
        with self._lock:
            if self._popen.returncode is None and not kill_group(self._popen.pid):
                self._popen.kill()

    def close(self) -> None:
        """Kill the process if it is alive, and free its resources."""
        self._end()
        self._selector.close()
        self._control.close()
        for stream in self._streams:
            stream.close()

    def _end(self) -> int:
        """The exit status of the process, which is killed if it is still alive."""
        self.kill()
        with self._lock:
            return self._popen.wait(_REAP_S)

    def _send_nowait(self, message: tuple[Any, ...]) -> bool:
        frame = pickle.dumps(message)
        try:
            self._control.sendall(len(frame).to_bytes(8, "big") + frame)
        except OSError:  # it has ended, or reads nothing
            return False
        return True

    def _answer(self, timeout_s: float | None) -> tuple[Any, ...] | TimedOut | Crashed:
        """The next message from the process. TimedOut: it was killed. Crashed: it ended or closed its socket."""
        deadline_at = None if timeout_s is None else time.monotonic() + timeout_s
        while (message := self._next_message()) is None:
            left_s = _POLL_S if deadline_at is None else min(_POLL_S, deadline_at - time.monotonic())
            if left_s <= 0:
                assert timeout_s is not None, "there is a deadline"
                self._end()
                return TimedOut(timeout_s)
            if not self._listen(left_s):
                return self._crashed()
        return message

    def _listen(self, timeout_s: float) -> bool:
        """Wait for something to read, and read it. False: the process has ended and everything has been read."""
        ready = self._selector.select(timeout_s)
        for key, _ in ready:
            stream = key.data
            if stream is None:
                try:
                    data = self._control.recv(1 << 20)
                except ConnectionResetError:  # it was killed with a request unread
                    data = b""
                if not data:  # it closed its socket
                    return False
                self._received += data
            elif not stream.drain_nowait():
                self._selector.unregister(stream.fd)
        return bool(ready) or self._look() is None

    def _next_message(self) -> tuple[Any, ...] | None:
        if len(self._received) < 8:
            return None
        end = 8 + int.from_bytes(self._received[:8], "big")
        if len(self._received) < end:
            return None
        message: tuple[Any, ...] = pickle.loads(self._received[8:end])
        del self._received[:end]
        return message

    def _crashed(self) -> Crashed:
        """How the process ended by itself, determined before its group is killed."""
        patience_at = time.monotonic() + _POLL_S
        while (code := self._look()) is None and time.monotonic() < patience_at:
            time.sleep(_ENDING_S)
        self._end()
        return Crashed("it closed its socket" if code is None else how_it_ended(code))

    def _look(self) -> int | None:
        """As `exit_code`."""
        with self._lock:
            return exit_code(self._popen)

    def _output(self) -> Output:
        # What was printed before the answer was sent lies in the pipes by now, which hold no more than one reading.
        for stream in self._streams:
            stream.drain_nowait()
        stdout, stderr = self._streams
        return Output(stdout.text(), stderr.text(), stdout.num_bytes + stderr.num_bytes)


def _ending(answer: tuple[Any, ...]) -> Returned | Raised:
    match answer:
        case ("returned", payload):
            try:
                return Returned(pickle.loads(payload))
            except Exception as error:  # a class that only the process knows
                return Raised(f"TypeError: the value returned cannot be read here: {error}", str(error))
        case ("raised", payload, words, trace, codes):
            return Raised(words, trace, codes, payload)
        case ("unloaded", words, trace):
            return Raised(f"the process could not load what it was sent: {words}", trace)
    raise InternalError(f"a worker process answered {answer[0]!r}")
