"""Of every algorithm, level and term: what the page shows of a step's tokens adds up to its loss, and each token has
the weight and the loss that the formulas give it."""

from __future__ import annotations

import asyncio
import math
import shutil
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from ludus.algorithms.resolve import algorithm_of
from ludus.algorithms.settings import AlgorithmSettings
from ludus.algorithms.table import PRESETS
from ludus.engines.lease import ComputeLease
from ludus.engines.scripted import ScriptedEngine
from ludus.loop.batch import BatchRules
from ludus.loop.measure import TrainingClock
from ludus.loop.step import train_step
from ludus.loop.train import RunComponents
from ludus.loop.trainer_thread import TrainerThread
from ludus.models.load import load_model
from ludus.models.settings import ModelSettings
from ludus.rollout.groups import TakenGroups
from ludus.runs.store import RunStore
from ludus.runs.tokens import TokenColumns, read_tokens, write_tokens
from ludus.runs.watch.app import api_routes
from ludus.runs.watch.folder import RunsFolder
from ludus.teachers.base import ScoredPath
from ludus.teachers.teacher import Teacher
from ludus.text.tokenizer import Tokenizer
from ludus.trainer.critic import load_critic
from ludus.trainer.settings import CriticSettings, OptimizerSettings, TrainerSettings
from ludus.trainer.step import ModelTrainer
from ludus.types import Episode, Group, Sampling

MakeEpisode = Callable[..., Episode]
_LENGTH = 8  # of an answer at most, for the normaliser `constant`
_WITH_CRITIC = ("ppo", "critic in minibatches")

CASES: dict[str, dict[str, Any]] = {
    **{name: {"name": name} for name in PRESETS},
    "gdpo": {"name": "gdpo", "advantage": {"rewards": {"success": 1.0, "style": 0.5}}},
    "minibatches": {"minibatches": 3},
    "episodes in minibatches": {"normaliser": "episode", "minibatches": 2},
    "lengths in minibatches": {"normaliser": "constant", "minibatches": 4},
    "turns": {"loss": {"kind": "cispo", "level": "turn"}, "correction": {"cap": 1.5, "level": "turn"}},
    "sequences": {"loss": {"level": "episode"}, "correction": {"level": "episode"}, "minibatches": 2},
    "kl": {"kl": {"beta": 0.1}, "minibatches": 2},
    "weighted kl": {"kl": {"beta": 0.1, "weighted": True, "estimator": "k2"}},
    "reward kl": {"reward_kl": {"coef": 0.1}},
    "entropy": {"entropy": {"coef": 0.05}},
    "all terms": {"kl": {"beta": 0.1}, "entropy": {"coef": 0.05}, "top_entropy": 0.5, "minibatches": 2},
    "top entropy": {"kl": {"beta": 0.1}, "entropy": {"coef": 0.05}, "top_entropy": 0.5},
    "masks": {"off_policy_mask": {"threshold": 0.01}, "second_moment": 0.01, "correction": "mask", "minibatches": 2},
    "reused": {"proximal": "reuse", "minibatches": 2},
    "to the sampler": {"correction": "bypass", "minibatches": 2, "loss": {"clip_high": 0.01, "dual_clip": 1.5}},
    "critic in minibatches": {"name": "ppo", "minibatches": 2, "kl": {"beta": 0.1}, "entropy": {"coef": 0.05}},
}


class Unsure:
    """A teacher to whom every token has one logprob."""

    async def score(self, paths: Any) -> list[tuple[float, ...]]:
        return [(-5.5,) * len(path.wanted) for path in paths if isinstance(path, ScoredPath)]

    async def close(self) -> None: ...


def groups_of(make_episode: MakeEpisode, algorithm: AlgorithmSettings) -> tuple[Group, ...]:
    """Four groups of four members of one to three turns; the sampler was nearly as sure of its tokens as the model."""
    groups = []
    for group in range(4):
        members = []
        for member in range(4):
            num_turns = 1 + (group + member) % 3
            reward = (member + group) % 4 / 3 + 0.1 * (member == 3)
            made = make_episode(f"g{group}-m{member}", {num_turns - 1: reward}, num_turns=num_turns)
            turns = tuple(
                replace(turn, sampled=replace(turn.sampled, logprobs=(-5.9, -6.3, -5.8 - 0.1 * member)))
                for turn in made.session.turns
            )
            metrics = {"success": float(member > 1), "style": float(group % 2 == member % 2)}
            members.append(replace(made, session=replace(made.session, turns=turns), metrics=metrics))
        if algorithm_of(algorithm).needs.greedy:
            members.append(make_episode(f"g{group}-greedy", {0: 0.5}, sampling=Sampling(temperature=0.0)))
        groups.append(Group(f"g{group}", "row0", tuple(members)))
    return tuple(groups)


def trained_run(
    root: Path, model: Path, tokenizer: Path, make_episode: MakeEpisode, algorithm: AlgorithmSettings, critic: Any
) -> Path:
    """The folder of a run of one step."""
    settings = ModelSettings(path=str(model), dtype="float32")
    needs_critic = "values" in algorithm_of(algorithm).needs.measured
    trainer = ModelTrainer(
        load_model(settings),
        TrainerSettings(row_tokens=64, optimizer=OptimizerSettings(lr=1e-2)),
        algorithm,
        lease=ComputeLease(),
        critic=load_critic(settings, CriticSettings(model=critic)) if needs_critic else None,
    )
    engine = ScriptedEngine([], Tokenizer.load(tokenizer))
    groups = groups_of(make_episode, algorithm)
    rules = BatchRules(algorithm, 1.0, "individual", 64, 0)

    async def step(store: RunStore) -> None:
        components: Any = RunComponents(engine, trainer, None, store, None, None, None, Teacher(Unsure(), Unsure()))  # type: ignore[arg-type]
        with TrainerThread("trainer") as work:
            clock = TrainingClock(engine.stats())
            taken = TakenGroups(groups, ())
            await train_step(taken, components, rules=rules, version=0, clock=clock, work=work)

    with RunStore.create(root, "run", "model: {path: nowhere}\n") as store:
        for each in (episode for group in groups for episode in group.episodes):
            store.add_episode(each, step=1)
        asyncio.run(step(store))
    return store.folder


def shown_tokens(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Episode and numbers of every token of step 1 that the page shows with a loss."""
    watched = RunsFolder(folder)

    def get(path: str, **given: str) -> Any:
        return api_routes(watched, f"runs/run/{path}", given)

    try:
        for row in get("episodes", limit="1000")["episodes"]:
            for turn in get(f"episodes/{row['id']}")["turns"]:
                for token in get(f"episodes/{row['id']}/turns/{quote(turn['id'], safe='')}/tokens")["tokens"]:
                    if token.get("loss") is not None:
                        yield row["id"], token
    finally:
        watched.close()


def check_sum(folder: Path) -> list[tuple[str, dict[str, Any]]]:
    """Asserts that the page's tokens are those that were trained, and add up to the loss; returns them.

    Tokens that are only measured, of whose rewards others are judged, are masked and weigh nothing.
    """
    shown = list(shown_tokens(folder))
    tokens = [each for each in shown if each[1]["mask"] is None]
    assert all(token["loss"] == token["weight"] == 0 for _, token in shown if token["mask"] is not None)
    with RunStore.look(folder) as store:
        (_, metrics), *_ = store.metrics()
    assert len(tokens) == metrics["ledger/trained"] > 0
    assert math.fsum(token["loss"] for _, token in tokens) == pytest.approx(metrics["train/loss"], abs=1e-6)
    return tokens


def check_weights(tokens: list[tuple[str, dict[str, Any]]], algorithm: AlgorithmSettings) -> None:
    """Asserts that each token weighs what the normaliser says, counted from the page."""
    counts = Counter(episode for episode, _ in tokens)
    weight_of: Mapping[str, Callable[[int], float]] = {
        "token": lambda _: 1 / len(tokens),
        "episode": lambda own: 1 / (len(counts) * own),
        "constant": lambda _: 1 / (len(counts) * (algorithm.normaliser.tokens or 0)),  # type: ignore[attr-defined]
    }
    for episode, token in tokens:
        expected = weight_of[algorithm.normaliser.kind](counts[episode])
        assert token["weight"] == pytest.approx(expected, rel=1e-6), episode


def check_losses(tokens: list[tuple[str, dict[str, Any]]], algorithm: AlgorithmSettings) -> None:
    """Asserts that each token has the loss w (c clip(r A) + beta kl - coef H) of its own numbers."""
    loss: Any = algorithm.loss
    num_bonus = sum(token.get("factor") != 0 for _, token in tokens)
    for episode, token in tokens:
        gain = token["ratio"] * token["advantage"]
        bounded = min(max(token["ratio"], 1 - loss.clip_low), 1 + loss.clip_high) * token["advantage"]
        expected = -min(gain, bounded)
        if loss.dual_clip is not None and token["advantage"] < 0:
            expected = min(expected, -loss.dual_clip * token["advantage"])
        expected *= token.get("factor", 1.0)
        if algorithm.kl is not None:
            gap = token["reference_logprob"] - token["trained_logprob"]
            estimate = {"k2": gap**2 / 2, "k3": math.expm1(gap) - gap}[algorithm.kl.estimator]
            if algorithm.kl.weighted:
                estimate *= math.exp(token["trained_logprob"] - token["logprob"])
            expected += algorithm.kl.beta * estimate
        if algorithm.entropy is not None:
            share = 1.0 if algorithm.top_entropy is None else (token["factor"] != 0) * len(tokens) / num_bonus
            expected -= algorithm.entropy.coef * token["entropy"] * share
        assert token["loss"] == pytest.approx(token["weight"] * expected, rel=1e-4, abs=1e-9), episode


def is_clipped_token_by_token(algorithm: AlgorithmSettings) -> bool:
    loss: Any = algorithm.loss
    # which tokens of high entropy share a minibatch is not on the page
    is_known = algorithm.top_entropy is None or algorithm.minibatches == 1
    return is_known and loss.kind == "clip" and (loss.level == "token" or algorithm.is_ratio_one)


@pytest.mark.parametrize(
    ("name", "critic"), [*((name, "separate") for name in CASES), *((name, "shared") for name in _WITH_CRITIC)]
)
def test_the_tokens_of_the_page_are_what_the_loss_was_made_of(
    name: str,
    critic: Any,
    tmp_path: Path,
    tiny_model_folder: Path,
    tokenizer_folder: Path,
    make_episode: MakeEpisode,
) -> None:
    """Their losses add up to the step's, their weights are the normaliser's, and a clipped loss is its formula's."""
    algorithm = AlgorithmSettings(**CASES[name]).of_length(_LENGTH)
    folder = trained_run(tmp_path, tiny_model_folder, tokenizer_folder, make_episode, algorithm, critic)
    tokens = check_sum(folder)
    check_weights(tokens, algorithm)
    if is_clipped_token_by_token(algorithm):
        check_losses(tokens, algorithm)


def test_a_wrong_weight_is_found(
    tmp_path: Path, tiny_model_folder: Path, tokenizer_folder: Path, make_episode: MakeEpisode
) -> None:
    """In the loss by its sum; one that two tokens have exchanged, which leaves the sum, by the weights; and one that
    was recorded beside the right loss by the formula."""
    algorithm = AlgorithmSettings(normaliser="episode", kl={"beta": 0.1})
    made = trained_run(tmp_path, tiny_model_folder, tokenizer_folder, make_episode, algorithm, "separate")

    def changed(name: str, change: Callable[[dict[str, array[float]]], None]) -> Path:
        folder = Path(shutil.copytree(made, tmp_path / name / "run"))
        tokens = read_tokens(folder, 1)
        assert tokens is not None
        columns = {column: array("f", values) for column, values in tokens.columns.items()}
        change(columns)
        numbered = list(enumerate(tokens.turns))
        data = {column: values.tobytes() for column, values in columns.items()}
        places = {number: (turn, tokens.places.get(turn, range(count))) for number, (turn, count) in numbered}
        write_tokens(folder, 1, TokenColumns([(number, count) for number, (_, count) in numbered], data), places)
        return folder

    def heavier(columns: dict[str, array[float]]) -> None:
        for column in ("weight", "loss"):
            columns[column][5] *= 1.01

    def exchanged(columns: dict[str, array[float]]) -> None:
        weights = columns["weight"]
        first = next(place for place, weight in enumerate(weights) if weight != weights[0])
        weights[0], weights[first] = weights[first], weights[0]

    def beside(columns: dict[str, array[float]]) -> None:
        columns["weight"] = array("f", [2 * weight for weight in columns["weight"]])

    check_losses(check_sum(made), algorithm)
    with pytest.raises(AssertionError):
        check_sum(changed("heavier", heavier))
    tokens = check_sum(changed("exchanged", exchanged))
    with pytest.raises(AssertionError):
        check_weights(tokens, algorithm)
    tokens = check_sum(changed("beside", beside))
    with pytest.raises(AssertionError):
        check_losses(tokens, algorithm)
