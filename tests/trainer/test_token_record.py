from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ludus.algorithms.pack import Batch, pack
from ludus.runs.tokens import TokenColumns
from tests.trainer.test_step import branching_sequences, make_trainer, numbered

ALGORITHMS: list[dict[str, Any]] = [
    {},
    {"name": "dapo"},
    {"name": "gspo"},
    {"name": "cispo"},
    {"loss": "gmpo"},
    {"loss": "sapo"},
    {"loss": "vespo"},
    {"loss": "dppo"},
    {"loss": {"kind": "dro", "beta": 0.1}},
    {"loss": "clip_cov"},
    {"loss": "policy_gradient", "correction": "bypass"},
    {"name": "dpo"},
    {"kl": {"beta": 0.1}, "entropy": {"coef": 0.01}},
    {"top_entropy": 0.2, "correction": {"kind": "mask", "low": 0.9, "high": 1.1}},
    {"correction": ["bypass", {"kind": "divergence", "counted": False}]},
]


def columns_of(kept: TokenColumns) -> dict[str, Sequence[float]]:
    return {name: array("f", data) for name, data in kept.columns.items()}


@pytest.mark.parametrize(("minibatches", "epochs"), [(1, 1), (2, 1), (1, 2)])
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=str)
def test_the_losses_of_tokens_add_up_to_the_loss(
    algorithm: dict[str, Any], minibatches: int, epochs: int, tiny_model_folder: Path
) -> None:
    """Whatever the loss and its terms, in one step or several: each trained token is kept once, as its last epoch used
    it, and their sum is what `train/loss` says."""
    trainer = make_trainer(tiny_model_folder, algorithm={**algorithm, "epochs": epochs})
    sequences = numbered(branching_sequences())
    rows = [row for each in sequences for row in pack([each], row_tokens=64)]
    batch = Batch.of(rows) if minibatches == 1 else Batch((tuple(rows[:4]), tuple(rows[4:])), 0)
    kept: list[TokenColumns] = []
    metrics = trainer.train_batch(batch, on_tokens=kept.append)
    (tokens,) = kept
    assert sorted(tokens.turns) == [(number, len(each.target_idx)) for number, each in enumerate(sequences)]
    columns = columns_of(tokens)
    whole = math.fsum(columns["loss"]) / tokens.num_minibatches
    assert whole == pytest.approx(metrics["train/loss"], abs=1e-12)
    assert math.fsum(columns["entropy"]) / len(columns["entropy"]) == pytest.approx(metrics["train/entropy"], rel=1e-5)
    for name, shown in (("ratio", "ratio_mean"), ("clipped", "clip_fraction"), ("kl_reference", "kl_reference")):
        if f"train/{shown}" in metrics and name in columns:
            assert math.fsum(columns[name]) / len(columns[name]) == pytest.approx(
                metrics[f"train/{shown}"], rel=1e-5, abs=1e-6
            )


def test_numbers_of_a_token_are_those_of_its_loss(tiny_model_folder: Path) -> None:
    """Of the clipped loss with a truncated importance weight: each token's loss is made of its own row of numbers."""
    trainer = make_trainer(tiny_model_folder)
    sequences = numbered(branching_sequences())
    before = dict(enumerate(trainer.score([each.token_ids for each in sequences])))
    kept: list[TokenColumns] = []
    trainer.train_batch(Batch.of(pack(sequences, row_tokens=64)), on_tokens=kept.append)
    columns, start = columns_of(kept[0]), 0
    for number, count in kept[0].turns:
        sequence = sequences[number]
        for place in range(count):
            token = {name: column[start + place] for name, column in columns.items()}
            if sequence.temperatures[place] == 1.0:
                assert token["trained_logprob"] == pytest.approx(
                    before[number][sequence.target_idx[place] - 1], abs=1e-4
                )
            factor = min(math.exp(token["trained_logprob"] - sequence.logprobs[place]), 2.0)
            assert token["factor"] == pytest.approx(factor, rel=1e-4) and token["ratio"] == 1 and token["clipped"] == 0
            assert token["advantage"] == pytest.approx(sequence.advantages[place])
            assert token["loss"] == pytest.approx(-token["weight"] * token["advantage"] * factor, rel=1e-4)
        start += count


def test_nothing_is_kept_that_nobody_asked_for(tiny_model_folder: Path) -> None:
    """Metrics and weights are the same with and without; rows without turns leave no record."""
    batch = Batch.of(pack(numbered(branching_sequences()), row_tokens=64))
    kept: list[TokenColumns] = []
    assert make_trainer(tiny_model_folder).train_batch(batch, on_tokens=kept.append) == make_trainer(
        tiny_model_folder
    ).train_batch(batch)
    make_trainer(tiny_model_folder).train_batch(Batch.of(pack(branching_sequences(), row_tokens=64)))
    assert len(kept) == 1
