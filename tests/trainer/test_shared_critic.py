"""A value head on the policy's trunk: its gradient by hand, and that nothing else of the policy knows of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from ludus.algorithms.pack import Batch, PackedRow, TrainSequence, pack
from ludus.algorithms.settings import AlgorithmSettings
from ludus.engines.lease import ComputeLease
from ludus.models.load import load_model
from ludus.models.settings import LoraSettings, ModelSettings
from ludus.models.tree import TreePlan
from ludus.trainer.settings import CriticSettings, OptimizerSettings, TrainerSettings
from ludus.trainer.shared_critic import HEAD_NAME
from ludus.trainer.step import ModelTrainer

COUNT = 4


def make_trainer(folder: Path, *, lora: bool = False, loss: Any = "clip", **critic: Any) -> ModelTrainer:
    chosen = ModelSettings(path=str(folder), dtype="float32", lora=LoraSettings(rank=4, alpha=8) if lora else None)
    return ModelTrainer(
        load_model(chosen),
        TrainerSettings(optimizer=OptimizerSettings(lr=1e-2, max_grad_norm=None)),
        AlgorithmSettings(name="ppo", loss=loss),
        lease=ComputeLease(),
        critic=CriticSettings(**{"model": "shared", "clip_range": None, **critic}),
    )


def sequences() -> list[TrainSequence]:
    """Of four targets each; some begin alike."""
    prompt, a = list(range(5, 25)), [30, 31, 32]
    tails = (prompt + a + [60, 61], prompt + a + [62], [*prompt, 40, 41, 42, 43], list(range(100, 130)))
    return [
        replace(
            TrainSequence.plain(ids, range(len(ids) - 4, len(ids))),
            advantages=(0.5, -0.5, 1.0, -1.0),
            weights=(1 / 16,) * 4,
            logprobs=(-5.0,) * 4,
            turns=(number,) * 4,
            episodes=(number // 2,) * 4,
            groups=(0,) * 4,
            values=(0.0,) * 4,
            value_targets=tuple(0.1 * number + 0.2 * at for at in range(4)),
        )
        for number, ids in enumerate(tails)
    ]


def rows(row_tokens: int = 512) -> tuple[PackedRow, ...]:
    return pack(sequences(), row_tokens=row_tokens)


def with_head(trainer: ModelTrainer) -> ModelTrainer:
    """The trainer, whose head is drawn at random."""
    trainer.optimizer.masters[HEAD_NAME].normal_(generator=torch.Generator().manual_seed(0))
    trainer.publish().copy_into_shared()
    return trainer


def gradients(trainer: ModelTrainer, batch: Batch) -> dict[str, Tensor]:
    trainer.forward_backward(batch)
    made = {name: each.clone() for name, each in trainer.optimizer.gradients().items()}
    trainer.forget_gradients()
    return made


@pytest.mark.parametrize("loss", ["clip", {"kind": "clip", "level": "episode"}])
def test_with_weight_0_the_policys_gradient_is_as_if_there_were_none(tiny_model_folder: Path, loss: Any) -> None:
    """Bit for bit that of an algorithm without values on the same advantages, and the head has none."""
    batch = Batch.of(rows())
    seen = gradients(with_head(make_trainer(tiny_model_folder, loss=loss, loss_weight=0.0)), batch)
    without = ModelTrainer(
        load_model(ModelSettings(path=str(tiny_model_folder), dtype="float32")),
        TrainerSettings(),
        AlgorithmSettings(name="grpo", loss=loss),
        lease=ComputeLease(),
    )
    assert not seen.pop(HEAD_NAME).any()
    expected = gradients(without, batch)
    assert seen.keys() == expected.keys()
    assert all(torch.equal(each, expected[name]) for name, each in seen.items())


@pytest.mark.parametrize("lora", [False, True])
def test_the_gradient_is_autograds(tiny_model_folder: Path, lora: bool) -> None:
    """What a weight of 0.7 adds is 0.7 times that of sum w (V - R)^2 / 2, one sequence at a time, through the trunk."""
    none, some = (with_head(make_trainer(tiny_model_folder, lora=lora, loss_weight=weight)) for weight in (0.0, 0.7))
    policy, whole = gradients(none, Batch.of(rows())), gradients(some, Batch.of(rows(30)))
    head = none.optimizer.masters[HEAD_NAME].clone().requires_grad_()
    for each in sequences():
        count = each.target_idx[-1]
        plan = TreePlan(tuple(range(-1, count - 1)), tuple(range(count)))
        hidden = none.model.backbone(torch.tensor([each.token_ids[:count]]), torch.arange(count)[None], plan)[0]
        values = (hidden[[at - 1 for at in each.target_idx]] @ head.t())[:, 0]
        loss = 0.5 / 16 * ((values - torch.tensor(each.value_targets)) ** 2).sum()
        loss.backward()  # type: ignore[no-untyped-call]
    by_hand = none.optimizer.gradients()
    assert head.grad is not None
    torch.testing.assert_close(whole.pop(HEAD_NAME), 0.7 * head.grad, rtol=1e-4, atol=1e-6)
    for name, gradient in whole.items():
        expected = policy[name] + 0.7 * by_hand[name]
        assert float((gradient - expected).abs().max()) <= 1e-4 * float(expected.abs().max()) + 1e-7, name


def test_it_learns_beside_the_policy(tiny_model_folder: Path, tmp_path: Path) -> None:
    """From nothing to near what the values should be; one optimizer, one step; what is published and exported has no
    head, and plain transformers load it."""
    trainer = make_trainer(tiny_model_folder, loss_weight=1.0)
    before = trainer.measure(Batch.of(rows()), {"values"})
    assert {value for each in before.values() for value in each.values or ()} == {0.0}
    still = tuple(replace(row, advantages=(0.0,) * len(row.advantages)) for row in rows())
    seen = []
    for _ in range(40):
        seen.append(trainer.train_batch(Batch.of(still)))
        trainer.publish().copy_into_shared()
    assert seen[0]["critic/loss"] == pytest.approx(
        0.5 * sum((0.1 * n + 0.2 * at) ** 2 for n in range(COUNT) for at in range(4)) / 16
    )
    assert seen[-1]["critic/loss"] < 0.05 * seen[0]["critic/loss"] and "critic/lr" not in seen[0]
    after = trainer.measure(Batch.of(rows(30)), {"values"})
    for number, each in after.items():
        assert each.values == pytest.approx([0.1 * number + 0.2 * at for at in range(4)], abs=0.25)
    assert {name for name, _ in trainer.publish().named_tensors()} == set(trainer.model.trainable)
    trainer.export(tmp_path)
    plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert not any("score" in name for name in plain.state_dict())


def test_a_resumed_trainer_goes_on_with_its_head(tiny_model_folder: Path, tmp_path: Path) -> None:
    """Saved after two batches of two minibatches and loaded, both end at equal bits, the head's moments among them."""
    halves = tuple(pack(part, row_tokens=512) for part in (sequences()[:2], sequences()[2:]))
    trainer, resumed = (make_trainer(tiny_model_folder) for _ in range(2))

    def train(each: ModelTrainer) -> None:
        each.train_batch(Batch(halves, 0))
        each.publish().copy_into_shared()

    train(trainer)
    train(trainer)
    trainer.save(tmp_path)
    assert not (tmp_path / "critic").exists()
    resumed.load(tmp_path)
    assert resumed.measure(Batch.of(rows()), {"values"}) == trainer.measure(Batch.of(rows()), {"values"})
    train(trainer)
    train(resumed)
    masters = resumed.optimizer.masters
    assert HEAD_NAME in masters and masters[HEAD_NAME].any()
    assert all(torch.equal(each, masters[name]) for name, each in trainer.optimizer.masters.items())
