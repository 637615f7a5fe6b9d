"""Episodes made by hand, and a learner that counts instead of learning."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ludus.algorithms.measured import TokenNumbers
from ludus.algorithms.pack import Batch
from ludus.episodes.graph import SessionGraph
from ludus.types import Episode, Message, Outcome, Sampled, Sampling

MakeEpisode = Callable[..., Episode]
SAMPLING = Sampling()
OK = Outcome("ok")


class CountingLearner:
    """Remembers the batches it was given; its weights are their number."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []

    def train_batch(self, batch: Batch, _algorithm: object = None, *, on_tokens: object = None) -> Mapping[str, float]:
        self.batches.append(batch)
        return {"train/loss": 0.5}

    def measure(self, batch: Batch, names: Collection[str]) -> Mapping[int, TokenNumbers]:
        """Of every target the id of its token."""
        found: dict[int, list[float]] = {}
        for row in batch.rows:
            for turn, token in zip(row.turns or (), row.target_ids, strict=True):
                found.setdefault(turn, []).append(float(token))
        return {turn: TokenNumbers(**dict.fromkeys(names, tuple(ids))) for turn, ids in found.items()}

    def publish(self) -> CountingLearner:
        return self

    def named_tensors(self) -> Sequence[tuple[str, Any]]:
        return ()

    def copy_into_shared(self) -> None: ...

    def save(self, folder: Path) -> None:
        (folder / "count.txt").write_text(str(len(self.batches)))

    def load(self, folder: Path) -> None:
        self.batches = [Batch((), 0)] * int((folder / "count.txt").read_text())


@pytest.fixture
def learner() -> CountingLearner:
    return CountingLearner()


@pytest.fixture
def make_episode() -> MakeEpisode:
    """Makes an episode of a chain of turns, three tokens each; rewards by the index of the turn."""

    def make(
        episode_id: str,
        rewards: Mapping[int, float],
        *,
        num_turns: int = 2,
        version: int = 0,
        sampling: Sampling = SAMPLING,
        outcome: Outcome = OK,
    ) -> Episode:
        graph = SessionGraph(episode_id)
        path: tuple[int, ...] = (1, 2)
        before: str | None = None
        ids = [f"{episode_id}/t{number}" for number in range(num_turns)]
        for number, turn_id in enumerate(ids):
            sampled = (10 + number, 20 + hash_digit(episode_id), 30)
            graph.add_turn(
                turn_id=turn_id,
                prompt_ids=path,
                prefix=before,
                follows=before,
                fork=None,
                messages=(Message("user", "go"),),
                reply=Message("assistant", "x"),
                sampled=Sampled(sampled, (-1.0, -2.0, -3.0), (version,) * 3, "stop"),
                sampling=sampling,
                agent="",
                tools=(),
                started_at=0.0,
                finished_at=float(number),
            )
            path = (*path, *sampled, 4)
            before = turn_id
        return Episode(
            id=episode_id,
            task_id="row0",
            group_id=episode_id.split("-")[0],
            session=graph.snapshot(),
            rewards={ids[number]: reward for number, reward in rewards.items()},
            outcome=outcome,
            reward=sum(rewards.values()) if rewards else None,
        )

    return make


def hash_digit(text: str) -> int:
    return sum(map(ord, text)) % 10
