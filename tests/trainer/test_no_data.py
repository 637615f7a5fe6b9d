"""Whole steps of the trainer on a device without data: nothing is made on the wrong device, whatever is trained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ludus.algorithms.pack import Batch, LogitProcessing, TrainSequence, pack
from ludus.algorithms.settings import SUPERVISED, AlgorithmSettings
from ludus.engines.lease import ComputeLease
from ludus.models.scalar_head import with_scalar_head
from ludus.trainer.critic import CriticModel
from ludus.trainer.fixed_order import add_rows, take_rows
from ludus.trainer.settings import CriticSettings, OptimizerSettings, TrainerSettings
from ludus.trainer.step import ModelTrainer
from tests.models.no_data import NO_DATA, MixedDevicesError, UnorderedSumError, model_without_data, without_data

VOCAB = 512


def sequences() -> list[TrainSequence]:
    """Two answers to one prompt and another, numbered as turns; with values, kept sets, penalties and biases."""
    prompt, made = tuple(range(5, 25)), []
    for number, answer in enumerate(((30, 31, 32), (30, 41, 42), (50, 51, 52))):
        ids = prompt + answer if number < 2 else tuple(range(100, 120)) + answer
        how = LogitProcessing(20, frequency_penalty=0.5, repetition_penalty=1.2, logit_bias=((7, 1.0),))
        made.append(
            replace(
                TrainSequence.plain(ids, range(20, 23)),
                turns=(number,) * 3,
                episodes=(number,) * 3,
                groups=(number // 2,) * 3,
                values=(0.1,) * 3,
                value_targets=(0.2,) * 3,
                kept_ids=() if number else tuple((token, 400) for token in answer),
                logit_processings=(how,) * 3 if number == 1 else (),
            )
        )
    return made


def batch(num_minibatches: int = 1) -> Batch:
    rows = pack(sequences(), row_tokens=64)
    return Batch.of(rows, 0) if num_minibatches == 1 else Batch((rows,) * num_minibatches, 0)


def trained(
    algorithm: dict[str, Any],
    *,
    lora: bool = False,
    critic: str | None = None,
    num_minibatches: int = 1,
    **settings: Any,
) -> ModelTrainer:
    model = model_without_data(vocab_size=VOCAB, lora=lora)
    own: CriticModel | CriticSettings | None = None if critic is None else CriticSettings(model=critic)
    if critic == "separate":
        own = CriticModel(with_scalar_head(model_without_data(vocab_size=VOCAB)), CriticSettings())
    how = {"lease": ComputeLease(), "critic": own}
    trainer = ModelTrainer(model, TrainerSettings(**settings), AlgorithmSettings(**algorithm), **how)
    trainer.train_batch(batch(num_minibatches))
    return trainer


ALGORITHMS: dict[str, dict[str, Any]] = {
    "grpo": {},
    "reference": {"kl": {"beta": 0.1}},
    "together": {"loss": {"level": "episode"}},
    "pairs": {"name": "dpo"},
    "entropy": {"top_entropy": 0.4, "entropy": {"coef": 0.1}},
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_kind_of_loss_stays_on_the_models_device(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Token by token, over turns together, with a reference, with entropies, in pairs."""
    with without_data(monkeypatch):
        trained(ALGORITHMS[name])


@pytest.mark.parametrize(
    "settings",
    [
        {"lora": True},
        {"activation_checkpointing": True},
        {"optimizer": OptimizerSettings(moments="bf16")},
        {"publish_rounding": "nearest"},
        {"num_minibatches": 2},
    ],
)
def test_every_way_to_train_stays_on_the_models_device(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Adapters, layers that run again, moments in bf16, both roundings, several steps of a batch."""
    with without_data(monkeypatch):
        trained({}, **settings)


@pytest.mark.parametrize("critic", ["separate", "shared"])
def test_critics_stay_on_their_device(critic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They measure, and they learn."""
    with without_data(monkeypatch):
        trainer = trained({"name": "ppo"}, critic=critic)
        trainer.measure(batch(), {"values", "sampled_logprobs"})


@pytest.mark.parametrize("moments", ["fp32", "bf16"])
def test_what_follows_a_step_stays_on_the_models_device(
    moments: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Publishing, scoring, supervised training, saving, and going on from what was saved, whose moments come back to
    where the weights are."""
    with without_data(monkeypatch):
        trainer = trained({}, optimizer=OptimizerSettings(moments=moments))
        trainer.publish().copy_into_shared()
        assert all(weight.device == NO_DATA for _, weight in trainer.publish().named_tensors())
        trainer.score([[5, 6, 7]])
        trainer.save(tmp_path)
        trainer.load(tmp_path)
        kept = trainer.optimizer.state()["moments"].values()
        assert all(own[name].device == NO_DATA for own in kept for name in ("exp_avg", "exp_avg_sq"))
        trainer.train_batch(batch(), SUPERVISED)


def test_a_tensor_on_the_wrong_device_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between whole tensors, also where torch would not notice without data; single numbers and indices may come from
    the processor, as on a card."""
    with without_data(monkeypatch):
        on_card, here = torch.ones(3, device=NO_DATA), torch.ones(3)
        for mixed in (lambda: on_card + here, lambda: torch.where(here > 0, on_card, on_card), lambda: here @ on_card):
            with pytest.raises(MixedDevicesError):
                mixed()
        assert (on_card * torch.tensor(2.0))[torch.tensor([0, 2])].shape == (2,)
        assert on_card.cpu().tolist() == on_card.tolist() == [0.0] * 3


def test_a_sum_without_a_fixed_order_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that come together, going up or in a gradient, and sums along a single row."""
    rows = torch.tensor([0, 0, 1])
    with without_data(monkeypatch):
        values = torch.ones(2, 4, device=NO_DATA, requires_grad=True)
        at = rows.to(NO_DATA)
        for unordered in (
            lambda: values.index_select(0, at).sum().backward(),
            lambda: torch.zeros(2, 4, device=NO_DATA).index_add_(0, at, torch.ones(3, 4, device=NO_DATA)),
            lambda: torch.ones(1, 300, device=NO_DATA).cumsum(-1),
        ):
            with pytest.raises(UnorderedSumError):
                unordered()
        take_rows(values, at).sum().backward()
        add_rows(torch.zeros(2, 4, device=NO_DATA), at, torch.ones(3, 4, device=NO_DATA))
