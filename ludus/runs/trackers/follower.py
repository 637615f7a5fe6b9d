"""The program of a tracker's process: reads a run's folder, and sends what is new to the tracker.

Knows: the run store, its tracker.  Knows not: the run's process, agents.
Invariants: what the tracker did not accept is sent again, also by a later process, which finds the position in the
folder; an episode that it refuses while it takes others is left out, and counted; while the run goes on, sending uses
at most its share of a core, and metrics are sent before traces.

    runs/<name>/trackers/<tracker>.json  the tracker's id of the run, and the position up to which data was sent
                         <tracker>.log   output of the tracker's client
                         <tracker>.lock  locked by the process that sends to the tracker
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ludus.errors import LudusError
from ludus.processes.files import hold, write_whole
from ludus.runs.codec import decode_episode
from ludus.runs.decoder import decoder_of
from ludus.runs.folder import RESUMED, metrics_of, read_config, without_secrets
from ludus.runs.report import report_page, report_text
from ludus.runs.settings import TrackerName, TrackersSettings
from ludus.runs.store import RunStore
from ludus.runs.trackers.base import Report, TrackedEpisode, TrackedRun, Tracker
from ludus.runs.trackers.family import NICEST, cpu_s, run_as_others, run_in_idle_time

FOLDER = "trackers"
_POLL_S = 1.0
_LIVE_BATCH, _LAST_BATCH = 8, 64
"""Episodes sent at once: few during the run, as a batch must not take long; more at its end, as each batch costs a
transaction."""
_QUICK_S = 5.0
"""A tracker that refuses what it is sent says so at once; one that is not there is waited for longer."""
_MOST_REFUSED = 3
"""So many refusals in a row are the tracker's own failure."""
_KEPT_LINES = 64
"""Lines of metrics after which the position is stored: usually there are one or two."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 2.0, 60.0
_MAX_REASON_CHARS = 500
_ALL = "SELECT num, step, record FROM episodes WHERE num > ? AND num <= ? ORDER BY num LIMIT ?"
_OF_EACH_STEP = """
SELECT num, step, record FROM episodes AS one
WHERE num > ? AND num <= ? AND ? > (
    SELECT count(*) FROM (
        SELECT 1 FROM episodes AS before
        WHERE before.step IS one.step AND before.is_eval = one.is_eval AND before.num < one.num
        LIMIT ?
    )
)
ORDER BY num LIMIT ?
"""
"""The first episodes that ended in each step, and in each evaluation. The inner LIMIT bounds the rows that are
counted."""
Tell = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Position:
    """The position up to which a tracker has the run."""

    run_id: str | None = None
    """The run's id in the tracker. None: the tracker does not have the run yet."""
    episode: int = 0
    """Number of the last sent episode in run.db."""
    offset: int = 0
    """Byte offset in metrics.jsonl."""
    has_ended: bool = False

    @classmethod
    def read(cls, path: Path) -> Position:
        """The stored position; the beginning if there is none, or it cannot be read."""
        with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):
            return cls(**json.loads(path.read_bytes()))
        return cls()


class Follower:
    """Sends one run to one tracker."""

    def __init__(
        self, run: TrackedRun, tracker: TrackerName, open_tracker: Callable[[TrackedRun, str | None], Tracker]
    ) -> None:
        self._run = run
        self._open_tracker = open_tracker
        self._path = run.folder / FOLDER / f"{tracker}.json"
        self._path.parent.mkdir(exist_ok=True)
        self._store = RunStore.look(run.folder, checks=False)
        self._at = Position.read(self._path)
        self._tracker: Tracker | None = None
        self.num_left_out, self.why_left_out = 0, ""
        """Episodes that the tracker refused while it took others, and what it said of the last of them."""
        self._begin_share()

    @property
    def num_behind(self) -> int:
        """Number of episodes not sent yet."""
        return max(0, self._newest() - self._at.episode)

    def open(self) -> None:
        """Open the run in the tracker, unless it is open."""
        if self._tracker is None:
            self._tracker = self._open_tracker(self._run, self._at.run_id)
            self._keep(replace(self._at, run_id=self._tracker.run_id))
            self._begin_share()

    def tell(self, *, is_last: bool) -> bool:
        """Send what is new, or a part of it. Returns whether there may be more to send now.

        is_last: the run has ended: nothing more is written to the folder, and the share of a core does not apply.
        """
        self.open()
        assert self._tracker is not None, "it was opened"
        try:
            return self._tell(self._tracker, is_last=is_last)
        finally:
            self._busy_s = cpu_s() - self._began_cpu_s

    def drop(self) -> None:
        """The tracker has failed; it will be opened again before the next sending."""
        with contextlib.suppress(Exception):
            if self._tracker is not None:
                self._tracker.close()
        self._tracker = None

    def close(self) -> None:
        if self._tracker is not None:
            self._tracker.close()
        self._store.close()

    def _begin_share(self) -> None:
        """What was used until now does not count: opening a tracker takes seconds."""
        self._began_s, self._began_cpu_s, self._busy_s = time.monotonic(), cpu_s(), 0.0

    def _tell(self, tracker: Tracker, *, is_last: bool) -> bool:
        self._tell_metrics(tracker)
        spare_s = (time.monotonic() - self._began_s) * self._run.settings.share - self._busy_s
        if (is_last or spare_s > 0) and self._tell_episodes(tracker, _LAST_BATCH if is_last else _LIVE_BATCH):
            return True
        summary = self._store.summary() if is_last else None
        if summary is not None and not self._at.has_ended:
            tracker.end(summary, Report(partial(self._drawn, report_page), partial(self._drawn, report_text)))
            self._keep(replace(self._at, has_ended=True))
        return False

    def _tell_metrics(self, tracker: Tracker) -> None:
        path = self._run.folder / "metrics.jsonl"
        if not path.is_file():
            return
        with path.open("rb") as file:
            # A file shorter than the offset was replaced, and is read from the beginning.
            offset = self._at.offset if self._at.offset <= path.stat().st_size else 0
            file.seek(offset)
            try:
                for number, line in enumerate(file, start=1):
                    if not line.endswith(b"\n"):
                        break
                    found = metrics_of(line)
                    if found is not None and (numbers := {name: n for name, n in found[1].items() if name != RESUMED}):
                        tracker.add_metrics(found[0], numbers)
                    offset += len(line)
                    if number % _KEPT_LINES == 0:
                        self._reach(offset)
            finally:  # what it took before it failed is not sent again
                self._reach(offset)

    def _reach(self, offset: int) -> None:
        if offset != self._at.offset:
            self._keep(replace(self._at, offset=offset, has_ended=False))

    def _tell_episodes(self, tracker: Tracker, most: int) -> bool:
        """Send new episodes; returns whether there were any."""
        per_step = self._run.settings.traces_per_step
        per_step = tracker.most_per_step if per_step is None else per_step
        last = self._newest()
        within = (self._at.episode, last)
        rows = (
            self._store.rows(_ALL, (*within, most))
            if per_step is None
            else self._store.rows(_OF_EACH_STEP, (*within, per_step, per_step, most))
        )
        began_s = time.monotonic()
        try:
            if rows:
                tracker.add_episodes([_tracked(*row) for row in rows])
        except Exception:  # one of them may be refused, or all together be too much
            if len(rows) == 1 or time.monotonic() - began_s > _QUICK_S:
                raise
            self._tell_one_by_one(tracker, rows)
            return True
        reached = rows[-1][0] if len(rows) == most else max(last, self._at.episode)
        if reached != self._at.episode:
            self._keep(replace(self._at, episode=reached, has_ended=False))
        return bool(rows)

    def _tell_one_by_one(self, tracker: Tracker, rows: Sequence[tuple[int, int | None, bytes]]) -> None:
        """Send each of these episodes by itself. Those that are refused are left out once a later one is taken. Raises
        the tracker's error if none is taken after them."""
        refused: list[Exception] = []
        for num, step, record in rows:
            try:
                tracker.add_episodes([_tracked(num, step, record)])
            except Exception as error:
                refused.append(error)
                if len(refused) == _MOST_REFUSED:
                    break
            else:
                if refused:
                    self.num_left_out, self.why_left_out = self.num_left_out + len(refused), _reason(refused[-1])
                    refused = []
                self._keep(replace(self._at, episode=num, has_ended=False))
        if refused:
            raise refused[0]

    def _newest(self) -> int:
        """Number of the last episode; 0 if there is none. Numbers have no gaps."""
        ((found,),) = self._store.rows("SELECT coalesce(max(num), 0) FROM episodes")
        return int(found)

    def _drawn(self, draw: Callable[..., str]) -> str:
        try:
            return draw(self._store, decode=decoder_of(self._store))
        except LudusError:  # a library for the report is not installed
            return ""

    def _keep(self, at: Position) -> None:
        if at != self._at:
            write_whole(self._path, json.dumps(asdict(at)) + "\n")
            self._at = at


def follow(follower: Follower, tell: Tell, wait: Callable[[float], bool]) -> None:
    """Send to the tracker until the run has ended and the tracker has everything, or fails after the end.

    tell: called with each event, a mapping with the key `event`.
    wait: waits at most the given seconds; returns whether the run has ended.
    """
    is_last, pause_s, reason = False, _FIRST_PAUSE_S, ""
    told: Mapping[str, Any] = {}

    def tell_if_new(event: Mapping[str, Any]) -> None:
        """While the run goes on, what its process knows already does not wake it."""
        nonlocal told
        if is_last or event != told:
            tell(event)
        told = event

    def tell_failed() -> None:
        tell_if_new({"event": "failed", "why": reason, "behind": follower.num_behind})

    while True:
        try:
            follower.open()
            is_more = follower.tell(is_last=is_last)
            if is_last and not is_more:
                follower.close()
            behind = 0 if is_last and not is_more else follower.num_behind
            lacks = {"left_out": follower.num_left_out, "why": follower.why_left_out} if follower.num_left_out else {}
            tell_if_new({"event": "told", "behind": behind, **lacks})
            reason, pause_s = "", _FIRST_PAUSE_S
        except Exception as error:  # the boundary of the tracker: its client's errors are reported, and sending retried
            follower.drop()
            reason = _reason(error)
            tell_failed()
            is_more = False
        if is_last and not is_more:
            return
        is_last = is_last or wait(0.0 if is_more else pause_s if reason else _POLL_S)
        if reason:
            if is_last:  # no further attempt; count the episodes again, as some may have come since
                tell_failed()
                return
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _tracked(_num: int, step: int | None, record: bytes) -> TrackedEpisode:
    return TrackedEpisode(decode_episode(record), step)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:_MAX_REASON_CHARS]


def tracked_run(name: str, folder: Path, settings: TrackersSettings) -> TrackedRun:
    """The run in the folder, as it is given to trackers."""
    config: dict[str, Any] = {}
    with contextlib.suppress(LudusError):
        config = {key: value for key, value in without_secrets(read_config(folder)).items() if key != "trackers"}
    return TrackedRun(name, folder.absolute(), settings, config)


def _say(out: int, event: Mapping[str, Any]) -> None:
    with contextlib.suppress(OSError):  # the listening process has ended
        os.write(out, json.dumps(dict(event)).encode() + b"\n")


def _has_ended(timeout_s: float) -> bool:
    """Whether the run has ended: its process wrote to our stdin, or closed it."""
    ready, _, _ = select.select([0], [], [], timeout_s)
    if ready:
        run_as_others()
    return bool(ready)


def main() -> None:
    """The program's entry point: the first line of stdin says what to follow; the next line, or its end, that the run
    has ended."""
    from ludus.runs.trackers.select import tracker_class

    os.nice(NICEST)
    line = b""
    while not line.endswith(b"\n"):
        line += os.read(0, 1)
    request = json.loads(line)
    name, folder = request["tracker"], Path(request["folder"])
    (folder / FOLDER).mkdir(exist_ok=True)
    out = os.dup(1)  # stdout itself is redirected to the log, for what the tracker's client prints
    log = os.open(folder / FOLDER / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    while (lock := hold(folder / FOLDER / f"{name}.lock")) is None:  # the earlier process of the run is still sending
        time.sleep(_POLL_S)
    run = tracked_run(request["name"], folder, TrackersSettings(**request["settings"]))
    open_tracker = tracker_class(name)

    def open_then_calm(run: TrackedRun, run_id: str | None) -> Tracker:
        tracker = open_tracker(run, run_id)
        run_in_idle_time()  # not earlier: on a busy machine the imports would take minutes
        return tracker

    follow(Follower(run, name, open_then_calm), partial(_say, out), _has_ended)
    os.close(lock)


if __name__ == "__main__":
    main()
