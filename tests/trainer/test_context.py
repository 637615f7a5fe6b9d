"""Rows cut over ranks: what a trainer computes with `trainer.context_parallel` is what one process computes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ludus.algorithms.pack import Batch, TrainSequence, pack
from ludus.errors import ConfigError
from ludus.runs.tokens import TokenColumns
from ludus.trainer.settings import TrainerSettings
from tests.trainer.teams import COUNT, Team, batch, by_turn, relative_difference, sequences, sharded, weights, whole


@pytest.fixture(scope="module")
def team() -> Iterator[Team]:
    team = Team()
    yield team
    team.end()


def long_batch() -> Batch:
    """Of trees that are longer than a part, with branches on both sides of a cut."""
    return batch(row_tokens=200)


@pytest.mark.parametrize(
    ("family", "lora", "size", "context"),
    [
        ("llama", None, 2, 2),
        ("llama", None, 4, 4),  # each rank has half of the queries of a key head
        ("qwen3", None, 4, 2),
        ("gpt_oss", None, 2, 2),  # windows, and sinks of the heads a rank attends with
        ("gemma2", None, 2, 2),
        ("llama", 4, 4, 2),
    ],
)
def test_the_gradient_of_cut_rows_is_that_of_whole_ones(
    team: Team, tiny_models: Any, family: str, lora: int | None, size: int, context: int
) -> None:
    """Alone and beside other rows, of all weights and of adapters: equal to 1e-5 in fp32, and so is what is seen."""
    folder = tiny_models(family)
    alone = whole(folder, lora=lora)
    expected = alone.forward_backward(long_batch())
    gradients = dict(alone.optimizer.gradients())
    with sharded(team, folder, size, lora=lora, split={"context": context}) as trainer:
        seen = trainer.forward_backward(long_batch())
        got = {name: trainer.gradient(name) for name in gradients}
    assert max(len(row.token_ids) for row in long_batch().rows) > 64 * context / 2
    assert relative_difference(got, gradients) <= 1e-5
    assert seen == pytest.approx(expected, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize(
    "settings",
    [
        {"activation_checkpointing": True},
        {"algorithm": {"kl": {"beta": 0.1}}, "minibatches": 2},
        {"algorithm": {"loss": {"kind": "clip", "level": "episode"}}, "minibatches": 2},
    ],
)
def test_a_run_on_cut_rows_is_a_run_on_whole_ones(
    team: Team, tiny_model_folder: Path, settings: dict[str, Any]
) -> None:
    """Losses, norms and weights of steps, scores, and what is kept and measured of each turn, whichever ranks had its
    parts."""
    minibatches = settings.pop("minibatches", 1)
    parts = Batch(tuple(long_batch().rows[start::minibatches] for start in range(minibatches)), version=0)
    alone = whole(tiny_model_folder, **settings)
    made = []
    with sharded(team, tiny_model_folder, 4, split={"context": 2}, **settings) as trainer:
        for each in (alone, trainer):
            curve, kept = [], list[TokenColumns]()
            for _ in range(2):
                curve.append(each.train_batch(parts, on_tokens=kept.append))
                each.publish().copy_into_shared()
            made.append((curve, by_turn(kept[0]), weights(each), each.score([range(20, 220), [5, 6, 7]])))
        measured = trainer.measure(parts, {"sampled_logprobs"})
    (expected, tokens, last, scores), (curve, got_tokens, got_last, got_scores) = made
    for left, right in zip(curve, expected, strict=True):
        assert left == pytest.approx(right, rel=2e-4, abs=1e-5)
    assert relative_difference(got_last, last) <= 1e-4
    assert [len(each) for each in got_scores] == [199, 2]
    assert got_scores[0] == pytest.approx(scores[0], abs=1e-3)
    assert sorted(got_tokens) == [*range(COUNT)] == sorted(tokens)
    for turn, columns in tokens.items():
        for name, column in columns.items():
            assert got_tokens[turn][name] == pytest.approx(column, rel=1e-3, abs=1e-4), name
    for number, each in enumerate(sequences(COUNT)):
        assert measured[number].sampled_logprobs == each.logprobs


@pytest.mark.parametrize(
    ("critic", "split"), [({}, {"context": 2}), ({"model": "shared"}, {"context": 2}), ({}, {"tensor": 2})]
)
def test_a_critic_learns_from_cut_rows(
    team: Team, tiny_model_folder: Path, critic: dict[str, Any], split: dict[str, int]
) -> None:
    """Its values are those of one process, and so are both losses; its layers are cut as the policy's are."""
    settings: dict[str, Any] = {"algorithm": {"name": "ppo"}, "critic": {**critic, "clip_range": 0.2}}
    taught = [
        replace(each, values=(0.1,) * len(each.target_idx), value_targets=each.advantages) for each in sequences(COUNT)
    ]
    rows = Batch.of(pack(taught, row_tokens=200))
    alone = whole(tiny_model_folder, **settings)
    expected, values = alone.train_batch(rows), alone.measure(rows, {"values"})
    with sharded(team, tiny_model_folder, 2, split=split, **settings) as trainer:
        assert trainer.train_batch(rows) == pytest.approx(expected, rel=1e-3, abs=1e-5)
        got = trainer.measure(rows, {"values"})
    for number, each in values.items():
        assert got[number].values == pytest.approx(each.values, rel=1e-2, abs=1e-3)


def test_a_checkpoint_does_not_know_how_rows_were_cut(team: Team, tiny_model_folder: Path, tmp_path: Path) -> None:
    """Two ranks of one row go on from what one process saved, and it from theirs; each has every bit of the other."""
    with sharded(team, tiny_model_folder, 2, split={"context": 2}) as trainer:
        trainer.train_batch(long_batch())
        trainer.save(tmp_path / "cut")
        trainer.publish().copy_into_shared()
        first = weights(trainer)
        trainer.train_batch(long_batch())
        second = weights(trainer)
    alone = whole(tiny_model_folder)
    alone.load(tmp_path / "cut")
    assert relative_difference(weights(alone), first) == 0
    alone.save(tmp_path / "whole")
    with sharded(team, tiny_model_folder, 2, split={"context": 2}) as trainer:
        trainer.load(tmp_path / "whole")
        trainer.train_batch(long_batch())
        assert relative_difference(weights(trainer), second) == 0


def test_a_path_longer_than_a_row_of_one_rank_is_cut(team: Team, tiny_model_folder: Path) -> None:
    """A rank computes half of its tokens, and the gradient is that of the whole path."""
    path = TrainSequence.plain([3 + (7 * at) % 380 for at in range(385)], range(200, 385))
    (row,) = pack([path], row_tokens=128)
    alone = whole(tiny_model_folder)
    alone.forward_backward(Batch.of([row]))
    gradients = dict(alone.optimizer.gradients())
    with sharded(team, tiny_model_folder, 2, split={"context": 2}) as trainer:
        own = trainer._trainer._forward.tensors(trainer.model.part.of(row))
        assert len(own.token_ids_S) == 192 and len(row.token_ids) == 384
        trainer.forward_backward(Batch.of([row]))
        got = {name: trainer.gradient(name) for name in gradients}
    assert relative_difference(got, gradients) <= 1e-5


def test_ranks_of_a_row_are_some_of_all() -> None:
    """The error names a number of ranks that would do."""
    with pytest.raises(ConfigError, match=r"trainer\.ranks=3 must be a multiple of 2.*set trainer\.ranks=4"):
        TrainerSettings(ranks=3, context_parallel=2)
