"""Which episodes of a run that was killed are given their answers again."""

from __future__ import annotations

from pathlib import Path

import pytest

from ludus.api.trainer import _recall
from ludus.episodes.recall import Recall
from ludus.loop.checkpoint import RunProgress
from ludus.runs.store import RunStore
from tests.runs.conftest import episode_of


@pytest.mark.parametrize(
    ("kind", "num_accounted", "is_given"),
    [("ok", 0, True), ("cancelled", 0, True), ("truncated", 0, True), ("failed", 0, False), ("ok", 1, False)],
)
def test_what_the_ledger_does_not_know_yet_is_given_again(
    tmp_path: Path, kind: str, num_accounted: int, is_given: bool
) -> None:
    """What ended or was broken off after the account was closed; what had failed may be in it already."""
    with RunStore.create(tmp_path, "run", "") as store:
        episode = episode_of(1, kind=kind)
        store.add_episode(episode, step=1)
        found = _recall(store, RunProgress(step=1, num_accounted=num_accounted), episode.id)
        assert isinstance(found, Recall) is is_given
        assert _recall(store, RunProgress(), "another") is None
