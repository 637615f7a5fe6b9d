"""A run with as many episodes as it takes to measure: `python -m tests.runs.watch.big_run FOLDER EPISODES`."""

from __future__ import annotations

import random
import sys
from array import array
from dataclasses import replace
from pathlib import Path

from ludus.processes.files import sync
from ludus.runs import records
from ludus.runs.codec import encode_episode
from ludus.runs.database import Database
from ludus.runs.records import FinishedEpisode
from ludus.runs.store import RunStore
from ludus.runs.tokens import TokenColumns, write_tokens
from ludus.types import Outcome
from tests.runs.conftest import episode_of

_CONFIG = "model: {path: nowhere}\nalgorithm: {name: grpo}\n"
_KINDS = ("rejected", "failed", "timeout", "truncated")


def write_big_run(root: Path, name: str, *, num_episodes: int, per_step: int = 64, seed: int = 0) -> Path:
    """The folder of a run that has `num_episodes`, in groups of 8; those of each step have credit and metrics."""
    rng = random.Random(seed)
    store = RunStore.create(root, name, _CONFIG)
    store.close()
    db = Database.open(store.folder / records.NAME)
    with db.transaction() as writing:
        for number in range(num_episodes):
            episode = episode_of(number, num_turns=rng.randrange(1, 6), reward=rng.random())
            kind = "ok" if rng.random() < 0.8 else rng.choice(_KINDS)
            episode = replace(episode, outcome=Outcome(kind, "" if kind == "ok" else f"because of {number % 7}"))
            step = number // per_step + 1
            finished = FinishedEpisode(encode_episode(episode), step)
            writing.execute(records.INSERT, records.row_of(episode, finished))
            credit = [(turn.id, step, rng.gauss(0, 1), None) for turn in episode.session.turns]
            writing.executemany(records.INSERT_CREDIT, credit)
    db.close()
    num_steps = -(-num_episodes // per_step)
    for step in range(1, num_steps + 1):
        reward = step / num_steps
        store.add_metrics(step, {"rollout/reward": reward, "train/loss": 0.1, "train/entropy": 1.0, "time/step_s": 3.0})
    store.close()
    return store.folder


def write_step_tokens(folder: Path, step: int, turns: dict[str, int], *, loss: float = 0.5) -> float:
    """A token record of the step; the sum of its losses."""
    num = sum(turns.values())
    losses = array("f", [loss * (-1) ** (number % 3) for number in range(num)])
    columns = {name: array("f", [0.25] * num).tobytes() for name in ("trained_logprob", "ratio", "weight", "entropy")}
    numbered = list(enumerate(turns.items()))
    write_tokens(
        folder,
        step,
        TokenColumns([(number, count) for number, (_, count) in numbered], {**columns, "loss": losses.tobytes()}),
        {number: (turn, range(count)) for number, (turn, count) in numbered},
    )
    return sum(losses)


if __name__ == "__main__":
    folder = write_big_run(Path(sys.argv[1]), "big", num_episodes=int(sys.argv[2]))
    sync(folder / records.NAME)
