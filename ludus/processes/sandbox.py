"""Runs Python code that nobody vouches for: a fresh process for each run, with limits, and no network where possible.

Knows: processes, pipes, folders that are thrown away.  Knows not: who wrote the code, what its result is for.
Invariants: a run ends by its deadline and leaves no process and no file; what it prints costs a bounded memory.

This keeps a model's mistakes from doing harm. It is no wall against an attacker: files can be read, and on systems
without Linux's namespaces and Landlock the network and other files are within reach; `SandboxRun.isolation` tells.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ludus.errors import UserError
from ludus.processes.capture import Capture

_JAIL = Path(__file__).with_name("jail.py")
_START_S = 10.0
"""A new interpreter may take so long on a busy machine; it is not the code's time."""
_REPORT_BYTES = 4096
_SIGNALLED = 128
"""Exit status of a process that a signal ended, less the signal's number, as shells have it."""


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """What one run may use."""

    timeout_s: float = 10.0
    """Wall time, and about as much of one core."""
    memory_bytes: int = 1 << 30
    """Address space of each process."""
    file_bytes: int = 16 << 20
    """Of each file that it writes."""
    num_files: int = 256
    """Open at a time."""
    num_processes: int = 64
    """Where it has a user namespace, and its user is not root."""
    output_bytes: int = 64 * 1024
    """Kept of each of its streams: the beginning and the end."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not getattr(self, name) > 0:
                raise UserError(f"{name}={getattr(self, name)} must be more than 0")


@dataclass(frozen=True, slots=True)
class SandboxRun:
    """How a run ended, and what it printed."""

    ending: Literal["ok", "error", "timeout"]
    exit_code: int | None
    """None: it was killed at its deadline. 128 and more: a signal ended it."""
    stdout: str
    stderr: str
    num_output_bytes: int
    """Of both streams, also of what was not kept."""
    time_s: float
    isolation: frozenset[str]
    """What it was kept away from: `network` (or `tcp` alone), `processes` of others, `files` to change."""


async def run_python(
    code: str, *, stdin: str = "", limits: SandboxLimits | None = None, shows_last: bool = False
) -> SandboxRun:
    """Runs a script in a process and a folder of its own. Cancelling kills it.

    shows_last: the value of a last expression is printed, as notebooks do.
    """
    limits = limits or SandboxLimits()
    with (
        tempfile.TemporaryDirectory(prefix="ludus-sandbox-", ignore_cleanup_errors=True) as folder,
        _Streams(limits.output_bytes) as streams,
    ):
        scratch = Path(folder)
        (scratch / "inside").mkdir()
        (scratch / "main.py").write_text(code, encoding="utf-8", errors="replace")
        (scratch / "stdin").write_text(stdin, encoding="utf-8", errors="replace")
        begun = time.perf_counter()
        process = await _start(scratch, streams, limits, shows_last=shows_last)
        try:
            exit_code = await _end_of(process, streams.is_ready, limits.timeout_s)
        finally:
            # Its whole group; where it has a process namespace, whatever left the group dies with its first.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        time_s = time.perf_counter() - begun
        out, err = streams.rest()
        return SandboxRun(
            ending="timeout" if exit_code is None else "ok" if exit_code == 0 else "error",
            exit_code=exit_code,
            stdout=out.text(),
            stderr=err.text(),
            num_output_bytes=out.num_bytes + err.num_bytes,
            time_s=time_s,
            isolation=frozenset(streams.report()),
        )


class _Streams:
    """What a run prints and reports, read while it runs. Use as a context manager, on the event loop."""

    def __init__(self, output_bytes: int) -> None:
        self._reads, self.writes = zip(*(os.pipe() for _ in range(3)), strict=True)
        """Descriptors for output, errors and the report; those to write to are the run's, until `hand_over`."""
        for fd in self._reads:
            os.set_blocking(fd, False)
        self._captures = [Capture(fd, output_bytes) for fd in self._reads[:2]]
        self.is_ready = asyncio.Event()
        """The report is there: the code begins."""

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
        """The run alone holds the ends that are written to."""
        for fd in self.writes:
            os.close(fd)
        self.writes = ()

    def rest(self) -> tuple[Capture, Capture]:
        """Output and errors, with what was still in the pipes; a process that escaped may write on, unread."""
        for capture in self._captures:
            before = -1
            while capture.num_bytes != before:
                before = capture.num_bytes
                capture.drain_nowait()
        out, err = self._captures
        return out, err

    def report(self) -> list[str]:
        try:
            report: list[str] = json.loads(os.read(self._reads[2], _REPORT_BYTES) or "[]")
        except BlockingIOError:  # it was killed before it had one
            return []
        return report

    def _drain(self, capture: Capture) -> None:
        if not capture.drain_nowait():
            asyncio.get_running_loop().remove_reader(capture.fd)

    def _hear_report(self) -> None:
        asyncio.get_running_loop().remove_reader(self._reads[2])
        self.is_ready.set()


async def _start(
    scratch: Path, streams: _Streams, limits: SandboxLimits, *, shows_last: bool
) -> asyncio.subprocess.Process:
    inside = scratch / "inside"
    out, err, report = streams.writes
    order = {
        "path": str(scratch / "main.py"),
        "folder": str(inside),
        "report_fd": report,
        "shows_last": shows_last,
        "cpu_s": math.ceil(limits.timeout_s) + 1,
        **{name: getattr(limits, name) for name in ("memory_bytes", "file_bytes", "num_files", "num_processes")},
    }
    # no more than programs need: keys and tokens of this process stay here
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    environment = {"PATH": os.defpath, "HOME": str(inside), "TMPDIR": str(inside), "LANG": "C.UTF-8", **threads}
    with (scratch / "stdin").open("rb") as typed:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-B", "-X", "utf8", str(_JAIL), json.dumps(order)),
            stdin=typed,
            stdout=out,
            stderr=err,
            cwd=inside,
            env=environment,
            pass_fds=(report,),
            start_new_session=True,
        )
    streams.hand_over()
    return process


async def _end_of(process: asyncio.subprocess.Process, is_ready: asyncio.Event, timeout_s: float) -> int | None:
    """Exit status; None: the code did not end in its time."""
    ended, ready = asyncio.ensure_future(process.wait()), asyncio.ensure_future(is_ready.wait())
    try:
        await asyncio.wait({ended, ready}, timeout=_START_S, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait({ended}, timeout=timeout_s)
        if not ended.done():
            return None
        status = ended.result()
        return status if status >= 0 else _SIGNALLED - status
    finally:
        ended.cancel()
        ready.cancel()
