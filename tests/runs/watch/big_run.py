"""Runs that are as large as it takes to measure: `python -m tests.runs.watch.big_run FOLDER EPISODES` writes one of so
many episodes, and one of few that are very long."""

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
from ludus.types import Episode, Outcome
from tests.runs.conftest import decode, episode_of, sample_tokens

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


def write_long_run(
    root: Path, name: str, *, num_tokens: int = 100_000, num_turns: int = 3000, num_members: int = 300
) -> Path:
    """The folder of a run whose step 1 trained `ep-1`, of one turn with so many tokens, `ep-2`, of so many turns that
    took their time, and a group (`group-2`) with so many members."""
    with RunStore.create(root, name, _CONFIG) as store:
        long = _with_answer(1, num_tokens)
        members = [
            replace(episode_of(number, num_turns=4, reward=number / num_members), group_id="group-2", task_id="task-2")
            for number in range(10, 9 + num_members)
        ]
        talking = replace(_timed(episode_of(2, num_turns=num_turns)), group_id="group-2", task_id="task-2")
        for episode in (long, talking, *members):
            store.add_episode(episode, step=1)
            store.add_credit(1, {turn.id: 0.5 for turn in episode.session.turns})
        (turn,) = long.session.turns
        loss = write_step_tokens(store.folder, 1, {turn.id: len(turn.sampled.token_ids)}, loss=0.5 / num_tokens)
        store.add_metrics(1, {"rollout/reward": 0.5, "train/loss": loss})
    return store.folder


def _with_answer(seed: int, num_tokens: int) -> Episode:
    """An episode of one turn, whose answer has so many tokens."""
    episode = episode_of(seed, num_turns=1)
    (turn,) = episode.session.turns
    sampled = sample_tokens(random.Random(seed), num_tokens - 1)
    text = decode(sampled.token_ids)
    answered = replace(turn, sampled=sampled, reply=replace(turn.reply, content=text))
    nodes = (*episode.session.nodes[:-1], replace(episode.session.nodes[-1], token_ids=sampled.token_ids))
    return replace(episode, session=replace(episode.session, nodes=nodes, turns=(answered,)))


def _timed(episode: Episode) -> Episode:
    """Each of its turns takes a second."""
    turns = tuple(
        replace(
            turn,
            started_at=float(at),
            first_token_at=at + 0.3,
            finished_at=at + 0.8,
            sampled=replace(turn.sampled, prefill_s=0.2),
        )
        for at, turn in enumerate(episode.session.turns, start=1)
    )
    return replace(episode, started_at=1.0, session=replace(episode.session, turns=turns))


if __name__ == "__main__":
    root = Path(sys.argv[1])
    for folder in (write_big_run(root, "big", num_episodes=int(sys.argv[2])), write_long_run(root, "long")):
        sync(folder / records.NAME)
