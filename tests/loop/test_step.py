"""One step by itself: what it leaves behind, in which order, and a batch without a trainable token."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ludus.algorithms.settings import AlgorithmSettings
from ludus.engines.scripted import ScriptedEngine
from ludus.loop.batch import BatchRules
from ludus.loop.measure import TrainingClock
from ludus.loop.step import TrainStepResult, train_step
from ludus.loop.train import RunComponents
from ludus.loop.trainer_thread import TrainerThread
from ludus.rollout.groups import TakenGroups
from ludus.runs.store import RunStore
from ludus.teachers.base import ScoredPath
from ludus.teachers.engine import EngineScorer
from ludus.teachers.teacher import Teacher
from ludus.text.tokenizer import Tokenizer
from ludus.types import Episode, Group

RULES = BatchRules(AlgorithmSettings(), 1.0, "individual", 64, 0)


def pair(make_episode: Callable[..., Episode], *rewards: float) -> tuple[Episode, ...]:
    return tuple(make_episode(f"m{number}", {1: reward}, version=3) for number, reward in enumerate(rewards))


def take_step(
    tmp_path: Path,
    tokenizer_folder: Path,
    learner: Any,
    episodes: tuple[Episode, ...],
    told: list[str],
    *,
    rules: BatchRules = RULES,
    teacher: Teacher | None = None,
    engine: Any = None,
) -> TrainStepResult:
    engine = ScriptedEngine([], Tokenizer.load(tokenizer_folder)) if engine is None else engine

    async def main() -> TrainStepResult:
        with RunStore.create(tmp_path, "run", "") as store, TrainerThread("trainer") as work:
            components: Any = RunComponents(engine, learner, None, store, None, None, None, teacher)  # type: ignore[arg-type]
            clock = TrainingClock(engine.stats())
            taken = TakenGroups((Group("g", "t", episodes),), ())
            stepped = await train_step(
                taken,
                components,
                rules=rules,
                version=3,
                clock=clock,
                work=work,
                on_stage=lambda stage, *_: told.append(stage),
            )
            assert store.metrics() == [(4, dict(stepped.metrics))] and len(store.credit()) == 4
            assert engine.stats().version == 4
            return stepped

    return asyncio.run(main())


def test_a_step_leaves_weights_metrics_and_credit_behind(
    tmp_path: Path, tokenizer_folder: Path, learner: Any, make_episode: Callable[..., Episode]
) -> None:
    """Its stages end in order; the next version samples; the ledger is of everything that was handed in."""
    told: list[str] = []
    stepped = take_step(tmp_path, tokenizer_folder, learner, pair(make_episode, 0.0, 1.0), told)
    assert told == ["batch", "train", "publish"] and stepped.step == 4
    assert stepped.ledger.sampled == stepped.ledger.trained > 0 and len(learner.batches) == 1


def test_a_batch_without_a_trainable_token_is_a_step(
    tmp_path: Path, tokenizer_folder: Path, learner: Any, make_episode: Callable[..., Episode]
) -> None:
    """Where all rewards agree nothing is trained; the version and, in the learner, the schedule go on all the same."""
    stepped = take_step(tmp_path, tokenizer_folder, learner, pair(make_episode, 1.0, 1.0), [])
    assert stepped.metrics["train/skipped_steps"] == 1.0 and [batch.num_trained for batch in learner.batches] == [0]
    assert stepped.ledger.masked == {"zero_advantage": stepped.ledger.sampled}


def test_old_tokens_are_taught_beside_the_weights_of_now(
    tmp_path: Path, tokenizer_folder: Path, learner: Any, make_episode: Callable[..., Episode]
) -> None:
    """Weights 3 that equal their teacher learn nothing from tokens of weights 2, however likely those found them."""

    class Alike:
        """Each token has the logprob -1.5."""

        async def score(self, paths: Sequence[ScoredPath]) -> list[tuple[float, ...]]:
            return [(-1.5,) * len(path.wanted) for path in paths]

        async def close(self) -> None: ...

    distilled = replace(RULES, algorithm=AlgorithmSettings(name="distillation"), max_token_age=1)
    old, new = (make_episode(f"m{version}", {1: 0.0}, version=version) for version in (2, 3))
    teacher = Teacher(Alike(), Alike())
    take_step(tmp_path, tokenizer_folder, learner, (old, new), [], rules=distilled, teacher=teacher)
    (batch,) = learner.batches
    advantages = sorted(value for row in batch.rows for value in row.advantages)
    assert advantages == [-0.5, -0.5, *[0.0] * 6, 0.5, 0.5, 1.5, 1.5]  # of weights 3: the record has -1, -2 and -3


class SharedEngine:
    """On the learner's card; notes what it is asked, in order."""

    shares_card = True

    def __init__(self, engine: ScriptedEngine, order: list[str]) -> None:
        self._engine, self._order = engine, order

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def pause(self) -> None:
        self._order.append("pause")

    async def resume(self) -> None:
        self._order.append("resume")

    async def publish(self, version: int, weights: Any) -> None:
        self._order.append(f"publish {version}")
        await self._engine.publish(version, weights)

    async def score(self, token_ids: Sequence[int]) -> tuple[float, ...]:
        self._order.append("score")
        return (-1.5,) * (len(token_ids) - 1)


def noted(learner: Any, order: list[str]) -> Any:
    """The learner, which notes when it computes."""
    for name in ("measure", "train_batch"):
        compute = getattr(learner, name)

        def note(*args: Any, name: str = name, compute: Callable[..., Any] = compute, **how: Any) -> Any:
            order.append(name)
            return compute(*args, **how)

        setattr(learner, name, note)
    return learner


@pytest.mark.parametrize(
    ("algorithm", "rewards", "order"),
    [
        ({}, (0.0, 1.0), ["pause", "train_batch", "publish 4", "resume"]),
        ({}, (1.0, 1.0), ["pause", "train_batch", "publish 4", "resume"]),  # nothing can be trained
        ({"reward_kl": {"coef": 0.1}}, (0.0, 1.0), ["pause", "measure", "train_batch", "publish 4", "resume"]),
        ({"name": "distillation"}, (0.0, 1.0), ["score"] * 2 + ["pause", "train_batch", "publish 4", "resume"]),
    ],
    ids=["train", "nothing", "measure", "teacher"],
)
def test_a_shared_card_is_the_trainers_whenever_it_computes(
    algorithm: dict[str, Any],
    rewards: tuple[float, float],
    order: list[str],
    tmp_path: Path,
    tokenizer_folder: Path,
    learner: Any,
    make_episode: Callable[..., Episode],
) -> None:
    """The engine is asked as a teacher before it sleeps, and wakes with the new weights."""
    told: list[str] = []
    engine = SharedEngine(ScriptedEngine([], Tokenizer.load(tokenizer_folder)), told)
    rules = replace(RULES, algorithm=AlgorithmSettings(**algorithm))
    policy = EngineScorer((engine,), "policy", is_own=False)  # type: ignore[arg-type]
    how: Any = {"rules": rules, "teacher": Teacher(policy, policy), "engine": engine}
    stepped = take_step(tmp_path, tokenizer_folder, noted(learner, told), pair(make_episode, *rewards), [], **how)
    assert told == order
    assert {"time/sleep_s", "time/wake_s"} <= stepped.metrics.keys()


def test_a_step_that_fails_leaves_no_engine_asleep(
    tmp_path: Path, tokenizer_folder: Path, learner: Any, make_episode: Callable[..., Episode]
) -> None:
    """It goes on with the weights that it has, and the error is the step's own."""
    told: list[str] = []
    learner.train_batch = lambda *args, **how: 1 / 0
    engine = SharedEngine(ScriptedEngine([], Tokenizer.load(tokenizer_folder)), told)
    with pytest.raises(ZeroDivisionError):
        take_step(tmp_path, tokenizer_folder, noted(learner, told), pair(make_episode, 0.0, 1.0), [], engine=engine)
    assert told == ["pause", "train_batch", "resume"]
