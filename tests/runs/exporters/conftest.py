"""MLflow's database with a few episodes, made once: its tables take MLflow seconds."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from ludus.runs.exporters.base import FinishedEpisode
from ludus.runs.exporters.select import open_exporter
from ludus.runs.settings import MlflowSettings
from ludus.types import Episode, Outcome, Span
from tests.runs.conftest import episode_of

BEGUN_AT = time.time() - 1000  # what MLflow shows at first is of the last days


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
    uri = f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlruns.db"
    failed = replace(with_tools(9), reward=None, rewards={}, metrics={}, outcome=Outcome("failed", "ValueError: no"))
    settings = MlflowSettings(tracking_uri=uri, project_name="math")
    with open_exporter(settings, "first") as exporter:
        exporter.add(FinishedEpisode.of(with_tools(1), step=3))
        exporter.add(FinishedEpisode.of(failed, step=3))
        exporter.add(FinishedEpisode.of(replace(with_tools(10), spans=(), is_eval=True)))
    return uri
