"""Episodes on their way out: a thread hands them to a process of its own, and nothing in the run waits for either.

Knows: worker processes, queues.  Knows not: any viewer.
Invariants: `add` never waits and never fails; what did not leave is counted and told, once when it begins and once in
the end; a viewer that does not answer holds up the end of a run by seconds.

    add ─▶ waiting (at most MAX_WAITING) ─▶ thread ─▶ process ─▶ viewer
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter, deque
from collections.abc import Callable
from typing import Self

from ludus.processes.calls import CallEnd, Crashed, Raised, RemoteFunction, Returned, TimedOut, WorkerCall
from ludus.processes.process import WorkerProcess
from ludus.runs.exporters.base import Exporter, FinishedEpisode

logger = logging.getLogger(__name__)

MAX_WAITING = 4096
"""Episodes: tens of megabytes. Beyond it, a viewer that does not keep up loses the newest."""
_BATCH = 32  # one transaction of a database for so many
_START_TIMEOUT_S = 180.0  # importing a viewer's client and making its tables, at the lowest priority of a busy machine
_WRITE_TIMEOUT_S = 120.0
FIRST_PAUSE_S = 2.0
_LONGEST_PAUSE_S = 60.0
_OUTPUT_BYTES = 8192
_MAX_REASON_CHARS = 500


class BackgroundExporter(Exporter):
    """Use as a context manager."""

    def __init__(
        self,
        factory: Callable[[], Callable[..., object]],
        *,
        name: str,
        max_samples_per_step: int | None = None,
        patience_s: float = 60.0,
        first_pause_s: float = FIRST_PAUSE_S,
    ) -> None:
        """factory: makes, in the process, the function of episodes and of whether they are the last, which writes them.

        name: what the warnings call the viewer.  patience_s: how long a run that ends waits for the next batch, unless
        the viewer has just failed.
        first_pause_s: after a failure; each further one doubles it.
        """
        self._writer = RemoteFunction.made_by(factory)
        self._name = name
        self._max_samples = max_samples_per_step
        self._samples: Counter[tuple[int | None, bool]] = Counter()
        self._waiting: deque[FinishedEpisode] = deque()
        self._changed = threading.Condition()
        self._is_closing = False
        self._process: WorkerProcess | None = None
        self._num_leaving = 0
        self._num_written = 0
        self._num_lost = 0
        self._reason = ""
        """Why the last writing failed. Empty: it did not."""
        self._patience_s = patience_s
        self._first_pause_s = first_pause_s
        self._thread = threading.Thread(target=self._main, name=f"ludus-{name}", daemon=True)

    def __repr__(self) -> str:
        counts = f"written={self._num_written}, waiting={len(self._waiting)}, lost={self._num_lost}"
        return f"BackgroundExporter({self._name}, {counts})"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    @property
    def num_left(self) -> int:
        """Episodes that were added and are neither written nor lost yet."""
        with self._changed:
            return len(self._waiting) + self._num_leaving

    @property
    def has_failed(self) -> bool:
        """The last writing did."""
        return bool(self._reason)

    def add(self, finished: FinishedEpisode) -> None:
        with self._changed:
            key = (finished.step, finished.is_eval)
            self._samples[key] += 1
            if self._is_closing or (self._max_samples is not None and self._samples[key] > self._max_samples):
                return
            if len(self._waiting) >= MAX_WAITING:
                self._num_lost += 1
                return
            self._waiting.append(finished)
            self._changed.notify_all()

    def flush(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self.num_left or self._is_closing)

    def close(self) -> None:
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
            if self._waiting and not self._reason:
                logger.info("writing the last %d traces to %s", len(self._waiting), self._name)
        num_before = -1
        while self._thread.is_alive():
            if self._num_written == num_before and self._process is not None:
                self._process.kill()
            num_before = self._num_written
            self._thread.join(self._patience_s)
        if self._num_lost:
            logger.warning(
                "%s: %d of %d traces were not written%s; the episodes are in the run's folder",
                self._name,
                self._num_lost,
                self._num_lost + self._num_written,
                f" ({self._reason})" if self._reason else "",
            )

    def _main(self) -> None:
        pause_s = self._first_pause_s
        self._write([], is_last=False)  # what is wrong with the viewer is reported before there is anything to lose
        while True:
            if self._reason:
                with self._changed:
                    self._changed.wait_for(lambda: self._is_closing, pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            else:
                pause_s = self._first_pause_s
            with self._changed:
                while not (self._waiting or self._is_closing):
                    self._changed.wait()
                if self._is_closing and self._reason:
                    self._num_lost += len(self._waiting)
                    break
                batch = [self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))]
                self._num_leaving = len(batch)
                is_last = self._is_closing and not self._waiting
            self._write(batch, is_last=is_last)
            with self._changed:
                self._num_leaving = 0
                self._changed.notify_all()
            if is_last:
                break
        if self._process is not None:
            self._process.close()

    def _write(self, batch: list[FinishedEpisode], *, is_last: bool) -> None:
        if self._process is None or not self._process.is_alive:
            if self._process is not None:
                self._process.close()
            self._process = WorkerProcess(env=os.environ, output_bytes=_OUTPUT_BYTES, start_timeout_s=_START_TIMEOUT_S)
        call = WorkerCall.of(self._writer, (batch, is_last), timeout_s=max(_WRITE_TIMEOUT_S, self._patience_s))
        reason = _failure(self._process.run(call))
        if reason is None:
            if self._reason:
                logger.warning("%s: traces are written again", self._name)
            self._num_written += len(batch)
            self._reason = ""
            return
        if not self._reason:
            logger.warning("%s: traces cannot be written, and the run goes on without them: %s", self._name, reason)
        self._num_lost += len(batch)
        self._reason = reason


def _failure(end: CallEnd) -> str | None:
    """Why nothing was written. None: it was."""
    match end.ending:
        case Returned():
            return None
        case Raised(words):
            return words[:_MAX_REASON_CHARS]
        case TimedOut(timeout_s):
            return f"no answer within {timeout_s:g} s"
        case Crashed(how):
            return f"its process ended ({how})"
