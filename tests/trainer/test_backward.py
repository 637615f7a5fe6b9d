"""What the trainer hands to losses, and measures, of tokens of several versions."""

import math
from array import array
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers

from ludus.algorithms.pack import Batch, pack
from ludus.runs.tokens import TokenColumns
from tests.trainer.test_step import branching_sequences, make_trainer, numbered


@pytest.mark.parametrize("level", ["token", "turn"])
def test_the_proximal_policy_is_where_a_tokens_age_says(level: str, tiny_model_folder: Path) -> None:
    """Interpolated: the weight of a token d versions old is (pi / mu)^(1 - 1 / d), whether tokens are taken together or
    not, and nothing of it is computed before the first of several steps."""
    sequences = [replace(each, versions=(at,) * len(each.target_idx)) for at, each in enumerate(branching_sequences())]
    algorithm = {"proximal": "interpolate", "correction": {"cap": 1e6}, "loss": {"level": level}}
    trainer = make_trainer(tiny_model_folder, algorithm=algorithm)
    rows = [row for each in numbered(sequences) for row in pack([each], row_tokens=64)]
    kept: list[TokenColumns] = []
    trainer.train_batch(Batch((tuple(rows[:2]), tuple(rows[2:])), 3), on_tokens=kept.append)
    columns = {name: array("f", data) for name, data in kept[0].columns.items()}
    at = 0
    for number, count in kept[0].turns:
        for place in range(count):
            gap = columns["trained_logprob"][at] - sequences[number].logprobs[place]
            age = max(3 - number, 1)
            assert math.log(columns["factor"][at]) == pytest.approx((1 - 1 / age) * gap, abs=1e-5)
            at += 1


def test_the_length_of_a_gradient_is_measured(tiny_model_folder: Path) -> None:
    """1 - 2 p + the sum of squares of the distribution that a token was drawn from, at its temperature."""
    trainer = make_trainer(tiny_model_folder)
    batch = Batch.of(pack(numbered(branching_sequences()), row_tokens=40))
    measured = trainer.measure(batch, {"logit_gradients"})
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_model_folder, dtype=torch.float32)
    for number, each in enumerate(branching_sequences()):
        logits = model(torch.tensor([each.token_ids])).logits[0].detach()
        for index, temperature, found in zip(
            each.target_idx, each.temperatures, measured[number].logit_gradients or (), strict=True
        ):
            one_hot = torch.zeros(logits.shape[1])
            one_hot[each.token_ids[index]] = 1
            slope = one_hot - torch.softmax(logits[index - 1] / temperature, dim=-1)
            assert found == pytest.approx(float(slope.square().sum()), rel=1e-4)
