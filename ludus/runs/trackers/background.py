"""Starts the processes that send a run to trackers, listens to them, and waits for them when the run has ended.

Knows: these processes and their messages.  Knows not: any tracker, what is sent.
Invariants: a run waits for a tracker only at its end, and never fails because of one; a tracker's failure is logged
when it begins, and at the end what the tracker lacks.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from ludus.processes.ended import kill_group
from ludus.runs.settings import TrackerName, TrackersSettings

logger = logging.getLogger(__name__)

_START_TIMEOUT_S = 180.0
"""Long enough to import a tracker's client and create its tables at the lowest priority on a busy machine."""
_POLL_S = 0.2
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""Clients import numpy, which would start a thread for each core, and compute nothing."""
_HINTS: dict[TrackerName, str] = {
    "mlflow": "see that trackers.mlflow.tracking_uri is its address and that it answers",
    "wandb": "log in with `wandb login`, or set trackers.wandb.mode=offline",
    "tensorboard": "see that trackers.tensorboard.folder can be written",
    "trackio": "see that trackers.trackio.space can be reached (`hf auth login`), or leave it out",
    "otlp": "see that a collector takes OTLP over HTTP at trackers.otlp.endpoint",
}


class TrackerProcess:
    """One tracker of a run. Use as a context manager."""

    def __init__(self, tracker: TrackerName, name: str, folder: Path, settings: TrackersSettings) -> None:
        """name, folder: the run's; the content of the folder is sent."""
        self.tracker = tracker
        self._folder = folder
        self._patience_s = settings.patience_s
        self._request = {
            "tracker": tracker,
            "name": name,
            "folder": str(folder.absolute()),
            "settings": settings.model_dump(mode="json"),
        }
        self._heard_at = 0.0
        self._has_opened = threading.Event()
        self._num_behind = self._num_left_out = 0
        self._reason = ""
        """Why nothing can be sent to the tracker. Empty: it works."""

    def __repr__(self) -> str:
        state = f"failed: {self._reason}" if self._reason else f"behind={self._num_behind}"
        return f"TrackerProcess({self.tracker}, {state})"

    @property
    def num_behind(self) -> int:
        """Number of episodes not sent yet, by the process's last message."""
        return self._num_behind

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "ludus.runs.trackers.follower"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **_ONE_THREAD, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,  # no Ctrl-C from the terminal: what the run has written must be sent first
        )
        assert self._process.stdin is not None, "it is a pipe"
        with suppress(OSError):  # it has already ended, which its listener reports
            self._process.stdin.write(json.dumps(self._request).encode() + b"\n")
            self._process.stdin.flush()
        self._heard_at = time.monotonic()
        self._thread = threading.Thread(target=self._listen, name=f"ludus-{self.tracker}", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def wait_opened(self, timeout_s: float = _START_TIMEOUT_S) -> bool:
        """Wait until the tracker has answered or failed; False: neither happened in this time."""
        return self._has_opened.wait(timeout_s)

    def end(self) -> None:
        """Tell the process that the run has ended, so that it sends the rest. Does not wait."""
        assert self._process.stdin is not None, "it is a pipe"
        self._heard_at = time.monotonic()
        with suppress(OSError, ValueError):  # it has ended, or was told before
            self._process.stdin.write(b"\n")  # a forked process may hold the pipe open, so closing it is not enough
            self._process.stdin.close()

    def close(self) -> None:
        """Wait until the tracker has everything, or has failed."""
        self.end()
        if self._num_behind and not self._reason:
            logger.info("telling %s the last %d episodes", self.tracker, self._num_behind)
        try:
            while self._thread.is_alive():
                self._thread.join(_POLL_S)
                patience_s = self._patience_s if self._has_opened.is_set() else max(self._patience_s, _START_TIMEOUT_S)
                if time.monotonic() - self._heard_at > patience_s:
                    self._reason = self._reason or f"it did not get on for {patience_s:g} s"
                    break
        finally:
            kill_group(self._process.pid)  # together with what its client has started
            self._process.wait()
            self._thread.join()
        if self._reason:
            logger.warning(
                "%s: it does not have all of the run (%s)%s; what is missing is in the run's folder",
                self.tracker,
                self._reason,
                f", {self._num_behind} episodes are missing" if self._num_behind else "",
            )

    def _listen(self) -> None:
        assert self._process.stdout is not None, "it is a pipe"
        for line in self._process.stdout:
            with suppress(ValueError):  # a line cut short when the process was killed
                self._hear(json.loads(line))
        if self._process.wait() not in (0, -signal.SIGKILL):
            self._fail(f"its process ended with status {self._process.returncode}")
        self._has_opened.set()
        self._process.stdout.close()

    def _hear(self, said: dict[str, Any]) -> None:
        self._heard_at = time.monotonic()
        self._num_behind = int(said["behind"])
        if (left_out := int(said.get("left_out", 0))) > self._num_left_out:
            self._num_left_out = left_out
            logger.warning(
                "%s: it refused %d episodes, and goes on without them: %s", self.tracker, left_out, said["why"]
            )
        if said["event"] == "failed":
            self._fail(str(said["why"]))
        elif self._reason:
            logger.warning("%s: it is told again, and of what it has missed", self.tracker)
            self._reason = ""
        self._has_opened.set()

    def _fail(self, reason: str) -> None:
        if not self._reason:
            said = "%s: it cannot be told, and the run goes on without it: %s; %s (its log: %s)"
            log = self._folder / "trackers" / f"{self.tracker}.log"
            logger.warning(said, self.tracker, reason, _HINTS[self.tracker], log)
        self._reason = reason
