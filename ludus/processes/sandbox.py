"""Runs untrusted Python code: each run in a fresh, isolated process with limits.

Knows: processes, pipes, temporary folders.  Knows not: who wrote the code, what its result is for.
Invariants: a run ends by its deadline and leaves no process and no file; its output takes bounded memory; if isolation
is required and not available, nothing runs; only code that began has a result.

docs/promises.md lists what the code is isolated from and what is not promised; `tests/attacks` tries every item.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ludus.errors import BackendError, UserError
from ludus.processes.capture import Capture
from ludus.processes.ended import kill_group
from ludus.processes.walls import START_S, Sandboxing, Walls, prepare, walls

_REPORT_BYTES = 4096
_SIGNALLED = 128
"""Exit status of a process ended by a signal, minus the signal's number, as in shells."""


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """Limits of one run."""

    timeout_s: float = 10.0
    """Wall time, and about as much CPU time."""
    memory_bytes: int = 1 << 30
    """Address space of each process, and memory of all of them together."""
    disk_bytes: int = 64 << 20
    """Size of all files together, which are in memory; without isolation, of each file."""
    num_inodes: int = 4096
    """Files and folders existing at a time."""
    num_files: int = 256
    """Files open at a time in a process."""
    num_processes: int = 64
    """Processes and threads at a time."""
    output_bytes: int = 64 * 1024
    """Output kept of each stream: the beginning and the end."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not getattr(self, name) > 0:
                raise UserError(f"{name}={getattr(self, name)} must be more than 0")


@dataclass(frozen=True, slots=True)
class SandboxRun:
    """How a run ended, and its output."""

    ending: Literal["ok", "error", "timeout"]
    exit_code: int | None
    """None: it was killed at its deadline. 128 or more: a signal ended it."""
    stdout: str
    stderr: str
    num_output_bytes: int
    """Size of both streams, including what was not kept."""
    time_s: float
    isolation: frozenset[str]
    """What it was isolated from: all of `network`, `processes`, `files` and `kernel`, or nothing."""


async def run_python(
    code: str,
    *,
    stdin: str = "",
    limits: SandboxLimits | None = None,
    shows_last: bool = False,
    walled: Walls | Sandboxing = "required",
) -> SandboxRun:
    """Run a script in a process and a folder of its own. Cancelling kills it.

    shows_last: print the value of a last expression, as notebooks do.  walled: as for `walls`.
    Raises UserError if isolation is required and this system has none, BackendError if the code could not be started.
    """
    limits = limits or SandboxLimits()
    closed = walled if isinstance(walled, Walls) else await asyncio.to_thread(walls, walled)
    with (
        tempfile.TemporaryDirectory(prefix="ludus-sandbox-", ignore_cleanup_errors=True) as folder,
        _Streams(limits.output_bytes) as streams,
    ):
        scratch = Path(folder)
        prepare(scratch, code, stdin)
        begun = time.perf_counter()
        process = await _start(scratch, streams, limits, closed, shows_last=shows_last)
        try:
            exit_code = await _end_of(process, streams.is_ready, limits.timeout_s)
        finally:
            # Its whole group; where it has a process namespace, whatever left the group dies with its first.
            kill_group(process.pid)
            await process.wait()
        time_s = time.perf_counter() - begun
        out, err = streams.rest()
        if (report := streams.report()) is None:
            raise BackendError(_not_begun(exit_code, err.text()))
        if missing := report.get("missing"):
            raise UserError(f"the sandbox could not be closed: {missing}")
        return SandboxRun(
            ending="timeout" if exit_code is None else "ok" if exit_code == 0 else "error",
            exit_code=exit_code,
            stdout=out.text(),
            stderr=err.text(),
            num_output_bytes=out.num_bytes + err.num_bytes,
            time_s=time_s,
            isolation=closed.isolation,
        )


class _Streams:
    """Reads a run's output and report while it runs. Use as a context manager, on the event loop."""

    def __init__(self, output_bytes: int) -> None:
        self._reads, self.writes = zip(*(os.pipe() for _ in range(3)), strict=True)
        """Descriptors for stdout, stderr and the report; the writing ends are open here until `hand_over`."""
        for fd in self._reads:
            os.set_blocking(fd, False)
        self._captures = [Capture(fd, output_bytes) for fd in self._reads[:2]]
        self.is_ready = asyncio.Event()
        """Set when the report has arrived, and the code begins."""

    def __enter__(self) -> _Streams:
        loop = asyncio.get_running_loop()
        for capture in self._captures:
            loop.add_reader(capture.fd, self._drain, capture)
        loop.add_reader(self._reads[2], self._hear_report)
        return self

    def __exit__(self, *_: object) -> None:
        self.hand_over()
        for fd in self._reads:
            asyncio.get_running_loop().remove_reader(fd)
            os.close(fd)

    def hand_over(self) -> None:
        """Close the writing ends here, so that only the run holds them."""
        for fd in self.writes:
            os.close(fd)
        self.writes = ()

    def rest(self) -> tuple[Capture, Capture]:
        """Stdout and stderr, with what was still in the pipes; an escaped process may write more, which is not read."""
        for capture in self._captures:
            before = -1
            while capture.num_bytes != before:
                before = capture.num_bytes
                capture.drain_nowait()
        out, err = self._captures
        return out, err

    def report(self) -> dict[str, str] | None:
        """Empty if the code began; else what the system did not allow. None: the run ended before it reported."""
        try:
            written = os.read(self._reads[2], _REPORT_BYTES)
        except BlockingIOError:
            return None
        return dict(json.loads(written)) if written else None

    def _drain(self, capture: Capture) -> None:
        if not capture.drain_nowait():
            asyncio.get_running_loop().remove_reader(capture.fd)

    def _hear_report(self) -> None:
        asyncio.get_running_loop().remove_reader(self._reads[2])
        self.is_ready.set()


async def _start(
    scratch: Path, streams: _Streams, limits: SandboxLimits, closed: Walls, *, shows_last: bool
) -> asyncio.subprocess.Process:
    out, err, report = streams.writes
    names = ("memory_bytes", "disk_bytes", "num_inodes", "num_files", "num_processes")
    order = {name: getattr(limits, name) for name in names}
    order |= {"report_fd": report, "shows_last": shows_last, "cpu_s": math.ceil(limits.timeout_s) + 1}
    command, environment = closed.start(scratch, order)
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=out,
        stderr=err,
        cwd="/",
        env=environment,
        pass_fds=(report,),
        start_new_session=True,
    )
    streams.hand_over()
    return process


async def _end_of(process: asyncio.subprocess.Process, is_ready: asyncio.Event, timeout_s: float) -> int | None:
    """The exit status. None: the code exceeded its time limit, or did not begin."""
    ended, ready = asyncio.ensure_future(process.wait()), asyncio.ensure_future(is_ready.wait())
    try:
        begun, _ = await asyncio.wait({ended, ready}, timeout=START_S, return_when=asyncio.FIRST_COMPLETED)
        if begun:
            await asyncio.wait({ended}, timeout=timeout_s)
        if not ended.done():
            return None
        status = ended.result()
        return status if status >= 0 else _SIGNALLED - status
    finally:
        ended.cancel()
        ready.cancel()


def _not_begun(exit_code: int | None, stderr: str) -> str:
    how = f"it did not start within {START_S:g} s" if exit_code is None else f"it ended with exit status {exit_code}"
    said = stderr.strip().splitlines()[-1:]
    return (
        f"the sandbox could not run a program: {': '.join([how, *said])}. The program has no result; run fewer at "
        "once, or allow this user more processes and memory"
    )
