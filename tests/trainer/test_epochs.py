"""Several epochs on one batch: against a loop in plain torch, and against minibatches that come again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from ludus.algorithms.pack import Batch, TrainSequence, pack
from ludus.trainer.settings import OptimizerSettings
from ludus.trainer.step import ModelTrainer
from tests.trainer.test_step import branching_sequences, make_trainer, numbered

# with an eps above the rounding of gradients, where AdamW would enlarge it
OPTIMIZER = OptimizerSettings(lr=2e-3, eps=1e-4, max_grad_norm=None)
PARTS = (slice(0, 2), slice(2, 4))


def make_batch(parts: Sequence[slice] = PARTS) -> Batch:
    sequences = numbered(branching_sequences())
    return Batch(tuple(pack(sequences[part], row_tokens=64) for part in parts), version=0)


def weights(trainer: ModelTrainer) -> dict[str, Tensor]:
    return dict(trainer.publish().named_tensors())


def logprobs_of(model: Any, sequence: TrainSequence) -> Tensor:
    logits = model(torch.tensor([sequence.token_ids])).logits[0]
    at = torch.tensor(sequence.target_idx)
    by_temperature = logits[at - 1] / torch.tensor(sequence.temperatures)[:, None]
    return by_temperature.log_softmax(-1).gather(1, torch.tensor(sequence.token_ids)[at][:, None])[:, 0]


def train_plainly(folder: Path, epochs: int) -> dict[str, Tensor]:
    """PPO's clipped loss over two minibatches in each epoch: ratios are to the weights before the first step, whose
    weight to the sampler is at most 2."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    adamw = torch.optim.AdamW(
        model.parameters(), lr=OPTIMIZER.lr, betas=OPTIMIZER.betas, eps=OPTIMIZER.eps, weight_decay=0.0
    )
    sequences = branching_sequences()
    with torch.no_grad():
        proximal = [logprobs_of(model, each) for each in sequences]
    for _ in range(epochs):
        for part in PARTS:
            for sequence, before in list(zip(sequences, proximal, strict=True))[part]:
                advantages, sampled = torch.tensor(sequence.advantages), torch.tensor(sequence.logprobs)
                ratios = (logprobs_of(model, sequence) - before).exp()
                clipped = torch.minimum(ratios * advantages, ratios.clamp(0.8, 1.2) * advantages)
                (-torch.tensor(sequence.weights) * (before - sampled).exp().clamp(max=2.0) * clipped).sum().backward()
            adamw.step()
            adamw.zero_grad()
    return {name: each.detach() for name, each in model.named_parameters()}


def test_two_epochs_of_two_minibatches_are_four_steps_of_plain_torch(tiny_model_folder: Path) -> None:
    """Weights to 1e-6 in fp32, with ratios of which the second epoch clips more; one step of the schedule."""
    trainer = make_trainer(tiny_model_folder, algorithm={"epochs": 2}, optimizer=OPTIMIZER)
    before = {name: each.clone() for name, each in weights(trainer).items()}
    metrics = trainer.train_batch(make_batch())
    got, expected = weights(trainer), train_plainly(tiny_model_folder, epochs=2)
    assert got.keys() == expected.keys()
    assert max(float((got[name] - each).abs().max()) for name, each in expected.items()) <= 1e-6
    assert max(float((before[name] - each).abs().max()) for name, each in expected.items()) > 4e-3
    assert metrics["train/optimizer_steps"] == 4 and trainer.optimizer.num_batches == trainer.version == 1
    assert metrics["train/clip_fraction"] > metrics["train/clip_fraction/epoch_1"]
    assert metrics["train/kl"] != metrics["train/kl/epoch_1"] and "train/kl/epoch_2" not in metrics
    assert metrics["train/tokens"] == make_batch().num_trained and "train/tokens/epoch_1" not in metrics


@pytest.mark.parametrize(
    "algorithm",
    [
        {},
        {"proximal": "interpolate"},
        {"proximal": "reuse"},
        {"name": "cispo"},
        {"loss": {"level": "episode"}, "kl": {"beta": 0.1}, "entropy": {"coef": 0.1}},
    ],
    ids=str,
)
@pytest.mark.parametrize("parts", [PARTS, (slice(0, 4),)], ids=["two parts", "one part"])
def test_an_epoch_is_all_minibatches_once_more(
    algorithm: dict[str, Any], parts: tuple[slice, ...], tiny_model_folder: Path
) -> None:
    """In the same order: the bits of one epoch of minibatches that come twice, with one policy before the batch."""
    twice = make_trainer(tiny_model_folder, algorithm={**algorithm, "epochs": 2}, optimizer=OPTIMIZER)
    repeated = make_trainer(tiny_model_folder, algorithm=algorithm, optimizer=OPTIMIZER)
    sampling = {name: each.detach().clone() for name, each in twice.model.trainable.items()}
    twice.train_batch(make_batch(parts))
    repeated.train_batch(make_batch(parts * 2))
    for name, each in repeated.optimizer.masters.items():
        assert torch.equal(twice.optimizer.masters[name], each)
    assert all(torch.equal(sampling[name], each) for name, each in twice.model.trainable.items())
