"""Which episodes of a run that was killed are given their answers again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ludus.api.trainer import _recall
from ludus.episodes.recall import Recall
from ludus.loop.checkpoint import RunProgress
from ludus.runs.store import RunStore
from ludus.types import Call, Episode
from tests.runs.conftest import episode_of

WHOLE = episode_of(1)
"""Three turns."""


def attempt(own_id: str, kind: str, num_turns: int = 3) -> Episode:
    """An episode as far as a process came with it; each attempt is asked the same with the same seeds."""
    ended = episode_of(1, kind=kind)
    return replace(ended, id=own_id, session=replace(ended.session, turns=ended.session.turns[:num_turns]))


def given(recall: Recall) -> list[bool]:
    """Of the three answers, which."""
    record = WHOLE.session
    prompts = [record.path_ids(turn.node)[: -len(turn.sampled.token_ids)] for turn in record.turns]
    calls = [Call("c", "s", prompt, turn.sampling) for prompt, turn in zip(prompts, record.turns, strict=True)]
    return [recall.answer(call) is not None for call in calls]


@pytest.mark.parametrize(
    ("kind", "num_accounted", "is_given"),
    [("ok", 0, True), ("cancelled", 0, True), ("truncated", 0, True), ("failed", 0, False), ("ok", 1, False)],
)
def test_what_the_ledger_does_not_know_yet_is_given_again(
    tmp_path: Path, kind: str, num_accounted: int, is_given: bool
) -> None:
    """What ended or was broken off after the account was closed; what had failed may be in it already."""
    with RunStore.create(tmp_path, "run", "") as store:
        store.add_episode(attempt("m00", kind), step=1)
        start = RunProgress(step=1, num_accounted=num_accounted)
        assert given(_recall(store, start, "m00")) == [is_given] * 3
        assert given(_recall(store, start, "m01")) == [False] * 3


@pytest.mark.parametrize(
    ("attempts", "asked_for", "expected"),
    [
        # killed, and killed once more before it had come as far
        ([("m00", "cancelled", 2), ("m00", "cancelled", 1)], "m00", [True, True, False]),
        ([("m00", "ok", 3), ("m00", "cancelled", 1)], "m00", [True, True, True]),
        # its worker was lost, and another had begun it anew when all was killed
        ([("m00", "lost", 3), ("m00-r1", "ok", 3)], "m00", [True, True, True]),
        ([("m00", "lost", 3), ("m00-r1", "cancelled", 2)], "m00-r1", [True, True, False]),
        # it was given what had been sampled for it, and that is in the ledger as `failed`, or as `lost`
        ([("m00", "cancelled", 2), ("m00", "failed", 2)], "m00", [False, False, False]),
        ([("m00-r1", "ok", 3), ("m00", "lost", 2)], "m00-r1", [False, False, True]),
    ],
)
def test_all_that_was_sampled_for_an_episode_is_given_again(
    tmp_path: Path, attempts: list[tuple[str, str, int]], asked_for: str, expected: list[bool]
) -> None:
    """Whichever attempt it was sampled for, and however often the run was killed since."""
    with RunStore.create(tmp_path, "run", "") as store:
        for each in attempts:
            store.add_episode(attempt(*each), step=1)
        assert given(_recall(store, RunProgress(step=1), asked_for)) == expected


def test_of_two_answers_to_one_question_the_later_is_given(tmp_path: Path) -> None:
    """The one before was sampled by weights that were lost since, and learned again: to others, perhaps."""
    first, *_ = WHOLE.session.turns
    with RunStore.create(tmp_path, "run", "") as store:
        for logprob in (-1.0, -2.0):
            sampled = replace(first.sampled, logprobs=(logprob,) * len(first.sampled.token_ids))
            session = replace(WHOLE.session, turns=(replace(first, sampled=sampled),))
            store.add_episode(replace(WHOLE, id="m00", session=session), step=1)
        prompt = WHOLE.session.path_ids(first.node)[: -len(first.sampled.token_ids)]
        answer = _recall(store, RunProgress(step=1), "m00").answer(Call("c", "s", prompt, first.sampling))
        assert answer is not None and answer.logprobs[0] == -2.0
