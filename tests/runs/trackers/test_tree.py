from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

import pytest

from ludus.runs.trackers.conversation import conversation
from ludus.runs.trackers.mlflow import _allowed
from ludus.runs.trackers.tree import episode_tree, labels_of
from ludus.types import Outcome, Span
from tests.runs.conftest import rich_episode

HALF = "\ud83d"


def texts_of(value: Any) -> Iterator[str]:
    """All but the names of a mapping's values, which leave as JSON."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from texts_of(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from texts_of(inner)


def test_half_a_character_is_no_text_that_a_client_refuses() -> None:
    """It would be tried again for ever, and nothing that came after be told; agents cut texts where they like."""
    spans = (Span("tool", f"search{HALF}", 1.0, 2.0, {"q": HALF}, HALF, error=HALF, turn_id="t0"),)
    episode = replace(
        rich_episode(), id=f"ep{HALF}", task_id=HALF, outcome=Outcome("failed", f"ValueError: {HALF}"), spans=spans
    )
    told = [asdict(span) for span in episode_tree(episode)]
    for text in texts_of([told, conversation(episode), labels_of(episode, "run", 1)]):
        text.encode()
    assert any("\U0001f600" in text for text in texts_of(told)), "whole ones stay"


@pytest.mark.parametrize(
    ("outcome", "name"),
    [
        (
            Outcome("failed", "Traceback (most recent call last):\n  File …\nhttpx.ReadTimeout: no answer"),
            "httpx.ReadTimeout",
        ),
        (Outcome("failed", "KeyError: 'x'"), "KeyError"),
        (Outcome("timeout", "the agent took longer than rollout.episode_timeout_s=5.0"), "timeout"),
        (Outcome("lost", ""), "lost"),
    ],
)
def test_an_error_is_named_by_its_exception(outcome: Outcome, name: str) -> None:
    """Not by the first words of a traceback, under which viewers would put all errors together."""
    run, *_ = episode_tree(replace(rich_episode(), outcome=outcome))
    assert run.error_type == name


def test_names_that_mlflow_would_refuse_are_changed() -> None:
    """Letters of any script stay; what is no name of a file goes."""
    names = {"rollout/accuracy@1": "rollout/accuracy_1", "rollout/奖励": "rollout/奖励", "a//b/../c": "a/b/c"}
    names |= {"/": "_", "train/loss": "train/loss", "x" * 300: "x" * 250}
    assert {name: _allowed(name) for name in names} == names
