"""How a tracker is told: what is new, once, again after a failure, and where the next process goes on."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ludus.runs.metrics import Metrics
from ludus.runs.settings import TrackersSettings
from ludus.runs.store import RunStore
from ludus.runs.trackers.base import Report, TrackedEpisode, TrackedRun, Tracker
from ludus.runs.trackers.follower import Follower, follow, tracked_run
from tests.runs.conftest import episode_of
from tests.runs.trackers.conftest import SUMMARY


class Noted(Tracker):
    """A tracker that writes down what it is told, and refuses as it is asked to."""

    most_per_step: int | None = None

    def __init__(self, refuses: Sequence[bool] = (), *, dislikes: Sequence[str] = (), most: int = 64) -> None:
        """dislikes: episodes that it refuses, whatever comes with them.  most: more at once are too many."""
        self._dislikes, self._most = dislikes, most
        self.run_id = "noted"
        self.opened: list[str | None] = []
        self.metrics: list[tuple[int, dict[str, float]]] = []
        self.episodes: list[tuple[str, int | None]] = []
        self.ended: list[Mapping[str, Any]] = []
        self.reports: list[tuple[str, str]] = []
        self._refuses = list(refuses)

    def open(self, _run: TrackedRun, run_id: str | None) -> Tracker:
        self.opened.append(run_id)
        if self._refuses and self._refuses.pop(0):
            raise ConnectionError("nobody there")
        return self

    def add_metrics(self, step: int, metrics: Metrics) -> None:
        self.metrics.append((step, dict(metrics)))

    def add_episodes(self, episodes: Sequence[TrackedEpisode]) -> None:
        disliked = [one.episode.id for one in episodes if one.episode.id in self._dislikes]
        if disliked or len(episodes) > self._most:
            raise ValueError(f"413: {disliked or len(episodes)}")
        self.episodes += [(one.episode.id, one.step) for one in episodes]

    def end(self, summary: Mapping[str, Any], report: Report) -> None:
        self.ended.append(summary)
        self.reports.append((report.text(), report.page()))

    def close(self) -> None: ...


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    with RunStore.create(tmp_path, "run", "") as opened:
        yield opened


def told(store: RunStore, tracker: Noted, *ends: bool, **settings: Any) -> list[Mapping[str, Any]]:
    """What was said while the tracker was told. ends: whether the run has ended, each time it is asked."""
    said: list[Mapping[str, Any]] = []
    run, answers = tracked_run("run", store.folder, TrackersSettings(**settings)), iter(ends)
    follow(Follower(run, "mlflow", tracker.open), said.append, lambda _: next(answers, True))
    return said


def test_everything_is_told_once(store: RunStore) -> None:
    """Metrics, episodes with their steps, and the summary when the run has ended."""
    store.add_metrics(1, {"rollout/reward": 0.5})
    store.add_episode(episode_of(1), step=1)
    store.add_episode(replace(episode_of(2), is_eval=True))
    store.write_summary(SUMMARY)
    tracker = Noted()
    said = told(store, tracker, False, False, True)
    assert tracker.metrics == [(1, {"rollout/reward": 0.5})]
    assert tracker.episodes == [("ep-1", 1), ("ep-2", None)]
    assert tracker.ended == [SUMMARY]
    assert said[-1] == {"event": "told", "behind": 0}


def test_the_next_process_goes_on(store: RunStore) -> None:
    """With the tracker's own run, behind what it has; a run that has ended goes on too."""
    store.add_metrics(1, {"rollout/reward": 0.5})
    store.add_episode(episode_of(1), step=1)
    store.write_summary(SUMMARY)
    told(store, Noted())
    store.add_metrics(2, {"rollout/reward": 0.75})
    store.add_episode(episode_of(2), step=2)
    tracker = Noted()
    told(store, tracker)
    assert tracker.opened == ["noted"]
    assert tracker.metrics == [(2, {"rollout/reward": 0.75})]
    assert tracker.episodes == [("ep-2", 2)]
    assert tracker.ended == [SUMMARY]
    again = Noted()
    told(store, again)
    assert (again.metrics, again.episodes, again.ended) == ([], [], [])


def test_what_a_tracker_missed_is_told_later(store: RunStore) -> None:
    """Its failure is said with the reason, and costs nothing once it answers."""
    store.add_metrics(1, {"rollout/reward": 0.5})
    store.add_episode(episode_of(1), step=1)
    tracker = Noted([True])
    said = told(store, tracker, False, True)
    assert said[0] == {"event": "failed", "why": "ConnectionError: nobody there", "behind": 1}
    assert said[-1] == {"event": "told", "behind": 0}
    assert (len(tracker.metrics), len(tracker.episodes)) == (1, 1)


def test_a_tracker_that_fails_at_the_end_is_not_waited_for(store: RunStore) -> None:
    """The next process has what it missed, which is counted in the end: what came since it failed too."""
    store.add_episode(episode_of(1), step=1)
    tracker, said = Noted([True, True]), list[Mapping[str, Any]]()

    def wait(_: float) -> bool:
        store.add_episode(episode_of(2), step=1)
        return True

    run = tracked_run("run", store.folder, TrackersSettings())
    follow(Follower(run, "mlflow", tracker.open), said.append, wait)
    assert [(each["event"], each["behind"]) for each in said] == [("failed", 1), ("failed", 2)]
    assert tracker.opened == [None]
    later = Noted()
    told(store, later)
    assert later.episodes == [("ep-1", 1), ("ep-2", 1)]


def test_an_episode_that_is_refused_does_not_hold_up_the_others(store: RunStore) -> None:
    """It is left out as soon as a later one is taken, and counted; the next process does not send it again."""
    for number in range(1, 7):
        store.add_episode(episode_of(number), step=1)
    store.write_summary(SUMMARY)
    tracker = Noted(dislikes=("ep-2", "ep-3", "ep-5"))
    said = told(store, tracker, True)
    assert [name for name, _ in tracker.episodes] == ["ep-1", "ep-4", "ep-6"] and tracker.ended == [SUMMARY]
    assert said[-1] == {"event": "told", "behind": 0, "left_out": 3, "why": "ValueError: 413: ['ep-5']"}
    again = Noted()
    told(store, again, True)
    assert again.episodes == []


def test_a_tracker_that_refuses_all_is_no_fault_of_the_episodes(store: RunStore) -> None:
    """Nothing is left out; what is too much at once is taken one by one; the last one is not given up."""
    for number in range(1, 7):
        store.add_episode(episode_of(number), step=1)
    said = told(store, Noted(dislikes=[f"ep-{number}" for number in range(1, 7)]), True)
    assert said[-1]["event"] == "failed" and said[-1]["behind"] == 6
    said = told(store, Noted(most=1, dislikes=["ep-6"]), True)
    assert said[-1] == {"event": "failed", "why": "ValueError: 413: ['ep-6']", "behind": 1}
    tracker = Noted()
    told(store, tracker, True)
    assert tracker.episodes == [("ep-6", 1)]


def test_a_part_of_each_step(store: RunStore) -> None:
    """The first of each step that end, those of evaluations beside them, whichever process tells them."""
    for step in (1, 2):
        for idx in range(4):
            store.add_episode(episode_of(10 * step + idx), step=step)
    store.add_episode(replace(episode_of(99), is_eval=True), step=2)
    tracker = Noted()
    told(store, tracker, traces_per_step=2)
    assert [name for name, _ in tracker.episodes] == ["ep-10", "ep-11", "ep-20", "ep-21", "ep-99"]
    store.add_episode(episode_of(24), step=2)
    told(store, tracker, traces_per_step=2)
    assert len(tracker.episodes) == 5


@pytest.mark.parametrize("seed", range(8))
def test_what_is_shown_of_a_step_are_its_first(store: RunStore, seed: int) -> None:
    """Whatever the order in which steps and evaluations end, and however often one looks: as counting by hand says."""
    rng = random.Random(seed)
    asked = rng.choice([None, 0, 1, 2, 5])
    tracker, expected, seen = Noted(), list[str](), Counter[tuple[int | None, bool]]()
    tracker.most_per_step = rng.choice([None, 3])
    most = tracker.most_per_step if asked is None else asked
    for number in range(120):
        step, is_eval = rng.choice([None, 1, 2, 3]), rng.random() < 0.3
        store.add_episode(replace(episode_of(number), is_eval=is_eval), step=step)
        if most is None or seen[step, is_eval] < most:
            expected.append(f"ep-{number}")
        seen[step, is_eval] += 1
        if rng.random() < 0.05:
            told(store, tracker, traces_per_step=asked)
            assert [name for name, _ in tracker.episodes] == expected
    said = told(store, tracker, traces_per_step=asked)
    assert [name for name, _ in tracker.episodes] == expected
    assert said[-1] == {"event": "told", "behind": 0}


def test_the_report_is_drawn_as_it_is_asked_for(store: RunStore) -> None:
    """A page, and the same run in Markdown."""
    store.add_metrics(1, {"rollout/reward": 0.5})
    store.add_episode(episode_of(1), step=1)
    store.write_summary(SUMMARY)
    tracker = Noted()
    told(store, tracker)
    [(text, page)] = tracker.reports
    assert text.startswith("# run\n") and "| rollout/reward | 0.5 | 0.5 |" in text
    assert page.startswith("<!doctype html>") and "ep-1" in page


def test_a_line_that_is_being_written_is_read_when_it_is_whole(store: RunStore) -> None:
    """It is neither lost nor told by half."""
    path = store.folder / "metrics.jsonl"
    path.write_text('{"step": 1, "a/b": 1.0}\n{"step": 2, "a/')
    tracker = Noted()
    told(store, tracker)
    assert tracker.metrics == [(1, {"a/b": 1.0})]
    with path.open("a") as file:
        file.write('b": 2.0}\n')
    told(store, tracker)
    assert tracker.metrics == [(1, {"a/b": 1.0}), (2, {"a/b": 2.0})]


def test_traces_keep_to_their_share(store: RunStore) -> None:
    """While the run goes on they wait for time that is theirs; in the end all are told."""
    for idx in range(40):
        store.add_episode(episode_of(idx), step=1)
    tracker, behind = Noted(), list[int]()
    run = tracked_run("run", store.folder, TrackersSettings(share=1e-9))
    ends = iter([False, False, True])

    def wait(_: float) -> bool:
        behind.append(40 - len(tracker.episodes))
        return next(ends)

    follow(Follower(run, "mlflow", tracker.open), lambda _: None, wait)
    assert behind[-1] >= 32 and len(tracker.episodes) == 40


def test_what_metrics_take_is_of_the_share_too(store: RunStore) -> None:
    """They are told at once; what their tracker took for them, traces wait for."""
    store.add_metrics(1, {"rollout/reward": 0.5})
    tracker, told_live = Noted(), list[int]()
    run = tracked_run("run", store.folder, TrackersSettings(share=1e-9))
    ends = iter([False, False, True])

    def wait(_: float) -> bool:
        if not told_live:
            for idx in range(4):
                store.add_episode(episode_of(idx), step=1)
        told_live.append(len(tracker.episodes))
        return next(ends)

    follow(Follower(run, "mlflow", tracker.open), lambda _: None, wait)
    assert tracker.metrics == [(1, {"rollout/reward": 0.5})]
    assert told_live == [0, 0, 0] and len(tracker.episodes) == 4


def test_what_a_client_does_by_itself_is_of_the_share_too(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its threads and its service work between two looks as well, and traces wait for it."""
    spent = iter(range(100))
    monkeypatch.setattr("ludus.runs.trackers.follower.cpu_s", lambda: float(next(spent)))
    for idx in range(40):
        store.add_episode(episode_of(idx), step=1)
    tracker = Noted()
    follower = Follower(tracked_run("run", store.folder, TrackersSettings()), "mlflow", tracker.open)
    for _ in range(3):
        follower.tell(is_last=False)
    follower.close()
    assert len(tracker.episodes) == 8


def test_what_was_taken_of_several_lines_is_not_told_again(store: RunStore) -> None:
    """A tracker that fails at the third of them is told the third next."""
    for step in (1, 2, 3):
        store.add_metrics(step, {"a/b": float(step)})

    class Failing(Noted):
        def add_metrics(self, step: int, metrics: Metrics) -> None:
            if step == 3 and not self.episodes:
                self.episodes.append(("it failed", None))
                raise ConnectionError("full")
            super().add_metrics(step, metrics)

    tracker = Failing()
    said = told(store, tracker, False, True)
    assert [step for step, _ in tracker.metrics] == [1, 2, 3] and said[0]["event"] == "failed"


def test_a_run_is_not_woken_for_what_it_knows(store: RunStore) -> None:
    """While it goes on it hears what has changed, and at its end everything."""
    store.add_episode(episode_of(1), step=1)
    said = told(store, Noted(), False, False, False, False, True)
    assert said == [{"event": "told", "behind": 0}] * 2


def test_a_tracker_that_is_there_again_has_its_share(store: RunStore) -> None:
    """What it took before it failed is not held against the time since."""
    for idx in range(40):
        store.add_episode(episode_of(idx), step=1)
    tracker = Noted()
    follower = Follower(tracked_run("run", store.folder, TrackersSettings(share=1e-9)), "mlflow", tracker.open)
    counts = []
    for fails in (False, True, False):
        follower.tell(is_last=False)
        counts.append(len(tracker.episodes))
        if fails:
            follower.drop()
    follower.close()
    assert counts == [8, 8, 16]
