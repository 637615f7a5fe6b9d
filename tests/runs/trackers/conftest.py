"""Runs of a few episodes in each tracker, told by its own process as runs are."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ludus.config import Config
from ludus.runs.settings import TrackersSettings
from ludus.runs.store import RunStore
from ludus.runs.trackers.select import open_trackers
from ludus.types import Episode, Outcome, Span
from tests.runs.conftest import episode_of

BEGUN_AT = time.time() - 1000  # what MLflow shows at first is of the last days
PATIENCE_S = 240.0
"""On a busy machine, where the tracker's process has the lowest priority."""
SUMMARY = {"steps": 2, "reward": 0.75, "ledger": {"sampled": 9, "trained": 9, "masked": {}}}


@contextmanager
def tracked(root: Path, name: str, *, goes_on_at: int | None = None, **trackers: Any) -> Iterator[RunStore]:
    """A run that the trackers are told of, until the block ends. goes_on_at: the step after which it goes on."""
    settings = TrackersSettings(**{"patience_s": PATIENCE_S, **trackers})
    text = Config(name=name, trackers=settings).to_yaml()
    store = (
        RunStore.create(root, name, text) if goes_on_at is None else RunStore.go_on(root / name, text, step=goes_on_at)
    )
    with store, open_trackers(settings, name, store.folder):
        yield store


def with_tools(seed: int) -> Episode:
    """An episode with a tool, a broken call, a tool that failed, a reward function and a span of the agent's own."""
    base, at = episode_of(seed, num_turns=3, reward=0.5), BEGUN_AT + seed
    turns = [
        replace(turn, started_at=at + idx, finished_at=at + idx + 0.4) for idx, turn in enumerate(base.session.turns)
    ]
    turns[1] = replace(turns[1], undecoded=("<tool_call>{",))
    spans = (
        Span("tool", "add", at + 0.5, at + 0.7, {"a": 1}, "3", turn_id=turns[0].id, metrics={"hits": 2.0}),
        Span("tool", "search", at + 1.5, at + 1.7, {"q": "x" * 100_000}, None, error="TimeoutError: too long"),
        Span("reward", "grade", at + 2.5, at + 2.6, None, 0.5),
        Span("plan", "think", at + 2.4, at + 2.45),
    )
    return replace(
        base,
        session=replace(base.session, turns=tuple(turns)),
        spans=spans,
        started_at=at - 0.1,
        finished_at=at + 3,
        metrics={"success": 1.0, "time/tool_calls_s": 0.4},
    )


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Its address, after a run of one good episode, one that failed and one of an evaluation."""
    root = tmp_path_factory.mktemp("mlflow")
    uri = f"sqlite:///{root}/mlruns.db"
    failed = replace(with_tools(9), reward=None, rewards={}, metrics={}, outcome=Outcome("failed", "ValueError: no"))
    with tracked(root, "first", to="mlflow", project="math", mlflow={"tracking_uri": uri}) as run:
        run.add_episode(with_tools(1), step=3)
        run.add_episode(failed, step=3)
        run.add_episode(replace(with_tools(10), spans=(), is_eval=True))
        run.add_metrics(3, {"rollout/reward": 0.25, "rollout/accuracy@1": 0.5})
        run.write_summary(SUMMARY)
    return uri
