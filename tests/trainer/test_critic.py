"""The critic: values of tokens, what it learns from, and that packing, ranks and checkpoints change nothing."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ludus.algorithms.pack import Batch, PackedRow, TrainSequence, pack
from ludus.algorithms.settings import SUPERVISED, AlgorithmSettings
from ludus.algorithms.value_loss import value_loss
from ludus.engines.lease import ComputeLease
from ludus.errors import UserError
from ludus.models.load import load_model
from ludus.models.scalar_head import HEAD_NAME
from ludus.models.settings import LoraSettings, ModelSettings
from ludus.trainer.critic import Critic, load_critic
from ludus.trainer.metric_means import TokenMeans
from ludus.trainer.settings import CriticSettings, OptimizerSettings, TrainerSettings
from ludus.trainer.step import ModelTrainer

OPTIMIZER = OptimizerSettings(lr=1e-2, max_grad_norm=None)


def make_trainer(folder: Path, *, lora: bool = False, epochs_of_policy: int = 1, **settings: Any) -> ModelTrainer:
    chosen = ModelSettings(path=str(folder), dtype="float32", lora=LoraSettings(rank=4, alpha=8) if lora else None)
    critic = load_critic(chosen, CriticSettings(**{"optimizer": OPTIMIZER, **settings}))
    return ModelTrainer(
        load_model(chosen),
        TrainerSettings(optimizer=OPTIMIZER),
        AlgorithmSettings(name="ppo", epochs=epochs_of_policy),
        lease=ComputeLease(),
        critic=critic,
    )


def critic_of(trainer: ModelTrainer) -> Critic:
    assert trainer.critic is not None
    return trainer.critic


def sequences() -> list[TrainSequence]:
    """Four turns, of which some begin alike, with values and what they should have been."""
    prompt, a, b = list(range(5, 25)), [30, 31, 32], [30, 31, 50, 51, 52]
    made = []
    tails = (prompt + a + [60, 61], prompt + a + [62], prompt + b, list(range(100, 130)))
    for number, ids in enumerate(tails):
        targets = tuple(range(len(ids) - 4, len(ids)))
        made.append(
            replace(
                TrainSequence.plain(ids, targets),
                advantages=(0.5, -0.5, 1.0, -1.0),
                weights=(1 / 16,) * 4,
                logprobs=(-5.0,) * 4,
                turns=(number,) * 4,
                episodes=(number // 2,) * 4,
                values=(0.0,) * 4,
                value_targets=tuple(0.1 * number + 0.2 * at for at in range(4)),
            )
        )
    return made


def rows(row_tokens: int = 512) -> tuple[PackedRow, ...]:
    return pack(sequences(), row_tokens=row_tokens)


def gradients(critic: Critic, batch: tuple[PackedRow, ...]) -> dict[str, Tensor]:
    critic.add(batch, TokenMeans())
    made = {name: each.clone() for name, each in critic.optimizer.gradients().items()}
    critic.optimizer.forget_gradients()
    return made


def test_the_value_loss_is_verls() -> None:
    """Worked out by hand for clip 0.5: of |V - R| and of V held within 0.5 of what it was, the larger, squared."""
    values = torch.tensor([1.0, 0.2, -1.0], requires_grad=True)
    measured, targets = torch.tensor([0.0, 0.0, 0.0]), torch.tensor([1.0, 1.0, -0.2])
    loss, seen = value_loss(values, measured, targets, torch.tensor([0.5, 0.25, 0.25]), clip_range=0.5)
    # (1 - 1)^2 against (.5 - 1)^2; (.2 - 1)^2 twice; (-1 + .2)^2 against (-.5 + .2)^2
    assert loss.item() == pytest.approx(0.5 * (0.5 * 0.25 + 0.25 * 0.64 + 0.25 * 0.64))
    assert float(seen["clip_fraction"]) == pytest.approx(1 / 3)
    (by_value,) = torch.autograd.grad(loss, values)
    assert by_value.tolist() == pytest.approx([0.0, 0.25 * -0.8, 0.25 * -0.8])
    plain, nothing = value_loss(values, measured, targets, torch.ones(3), clip_range=None)
    assert plain.item() == pytest.approx(0.64) and not nothing


def test_an_untrained_critic_expects_nothing_and_learns(tiny_model_folder: Path) -> None:
    """The head begins at 0; after some batches values are near what they should have been, by turn and in order."""
    trainer = make_trainer(tiny_model_folder, clip_range=None)
    before = trainer.measure(Batch.of(rows()), {"values"})
    assert {value for each in before.values() for value in each.values or ()} == {0.0}
    seen = [trainer.train_batch(Batch.of(rows())) for _ in range(30)]
    assert seen[-1]["critic/loss"] < 0.05 * seen[0]["critic/loss"]
    # half the mean of (0.1 n + 0.2 at)^2
    assert seen[0]["critic/loss"] == pytest.approx(
        0.5 * sum((0.1 * n + 0.2 * at) ** 2 for n in range(4) for at in range(4)) / 16
    )
    assert seen[0]["critic/grad_norm"] > 0 and seen[0]["critic/lr"] == 1e-2 and "critic/clip_fraction" not in seen[0]
    after = trainer.measure(Batch.of(rows(30)), {"values"})
    for number, each in after.items():
        assert each.values == pytest.approx([0.1 * number + 0.2 * at for at in range(4)], abs=0.25)


@pytest.mark.parametrize("lora", [False, True])
def test_packing_never_changes_the_gradient(tiny_model_folder: Path, lora: bool) -> None:
    """Packed or one at a time, through backbone and head: equal to 1e-5, and the head's is not nothing."""
    critic = critic_of(make_trainer(tiny_model_folder, lora=lora))
    with torch.no_grad():
        critic.model.head_weight.normal_(generator=torch.Generator().manual_seed(0))
    together = gradients(critic, rows())
    alone = gradients(critic, tuple(row for each in sequences() for row in pack([each], row_tokens=512)))
    assert together.keys() == alone.keys() and any(name.startswith("lm_head") for name in together)
    for name, gradient in alone.items():
        assert float((together[name] - gradient).abs().max()) <= 1e-5 * float(gradient.abs().max()), name


def test_a_minibatch_is_an_optimizer_step(tiny_model_folder: Path) -> None:
    """Two parts move the critic twice, and the loss shown is the mean over the whole batch."""
    halves = [
        pack([replace(each, weights=(1 / 8,) * 4) for each in part], row_tokens=512)
        for part in (sequences()[:2], sequences()[2:])
    ]
    trainer = make_trainer(tiny_model_folder, optimizer=OptimizerSettings(lr=1e-9, max_grad_norm=None))
    whole = make_trainer(tiny_model_folder).train_batch(Batch.of(rows()))
    assert trainer.train_batch(Batch(tuple(halves), 0))["critic/loss"] == pytest.approx(whole["critic/loss"], rel=1e-4)
    moved = {float(own["step"]) for own in critic_of(trainer).optimizer.state()["moments"].values()}
    assert moved == {2.0}


@pytest.mark.parametrize("own", [None, 3])
def test_a_critic_has_the_policys_epochs_or_its_own(tiny_model_folder: Path, own: int | None) -> None:
    """Each is all minibatches once more, with the values before the batch; the schedule counts batches."""
    parts = tuple(pack(part, row_tokens=512) for part in (sequences()[:2], sequences()[2:]))
    trainer = make_trainer(tiny_model_folder, epochs_of_policy=2, epochs=own)
    metrics = trainer.train_batch(Batch(parts, 0))
    critic, repeated = critic_of(trainer), critic_of(make_trainer(tiny_model_folder))
    repeated.train(parts * (own or 2))
    for name, each in repeated.optimizer.masters.items():
        assert torch.equal(critic.optimizer.masters[name], each)
    assert metrics["train/optimizer_steps"] == 4.0 and critic.optimizer.num_batches == 1
    assert metrics["critic/loss"] != metrics["critic/loss/epoch_1"]
    assert ("critic/loss/epoch_2" in metrics) == (own == 3)


def test_while_it_warms_up_it_moves_alone(tiny_model_folder: Path) -> None:
    """warmup_steps batches train the critic; then both move, and versions count all of them."""
    trainer = make_trainer(tiny_model_folder, warmup_steps=2)
    before = {name: each.clone() for name, each in trainer.optimizer.masters.items()}
    for _ in range(2):
        seen = trainer.train_batch(Batch.of(rows()))
        assert seen["train/optimizer_steps"] == 0.0 and seen["critic/loss"] > 0 and "train/loss" not in seen
    assert all(torch.equal(each, before[name]) for name, each in trainer.optimizer.masters.items())
    assert trainer.train_batch(Batch.of(rows()))["train/optimizer_steps"] == 1.0 and trainer.version == 3
    assert not all(torch.equal(each, before[name]) for name, each in trainer.optimizer.masters.items())


def test_batches_without_a_token_count_in_both_schedules(tiny_model_folder: Path, tmp_path: Path) -> None:
    """In the critic's warm-up too, and after a resume."""
    falling = OptimizerSettings(lr=1.0, decay="linear", total_steps=4)
    trainer = make_trainer(tiny_model_folder, optimizer=falling, warmup_steps=1)
    for _ in range(2):
        trainer.train_batch(Batch.of(()))
    trainer.save(tmp_path)
    resumed = make_trainer(tiny_model_folder, optimizer=falling, warmup_steps=1)
    resumed.load(tmp_path)
    assert (resumed.optimizer.num_batches, critic_of(resumed).optimizer.num_batches, resumed.version) == (1, 2, 2)
    assert resumed.train_batch(Batch.of(rows()))["critic/lr"] == 0.5


def test_a_resumed_trainer_goes_on_with_its_critic(tiny_model_folder: Path, tmp_path: Path) -> None:
    """Saved after two batches and loaded, both models end at equal bits; without its files loading is an error."""
    trainer = make_trainer(tiny_model_folder, warmup_steps=1)
    for _ in range(2):
        trainer.train_batch(Batch.of(rows()))
    trainer.save(tmp_path)
    trainer.publish().copy_into_shared()
    resumed = make_trainer(tiny_model_folder, warmup_steps=1)
    resumed.load(tmp_path)
    assert resumed.measure(Batch.of(rows()), {"values"}) == trainer.measure(Batch.of(rows()), {"values"})
    for each in (trainer, resumed):
        each.train_batch(Batch.of(rows()))
    for one, other in ((trainer, resumed), (critic_of(trainer), critic_of(resumed))):
        masters = other.optimizer.masters
        assert all(torch.equal(each, masters[name]) for name, each in one.optimizer.masters.items())
    (tmp_path / "critic" / "trainer.json").unlink()
    with pytest.raises(UserError, match=r"no checkpoint in .*critic"):
        resumed.load(tmp_path)


def test_a_trainer_without_a_critic_refuses_what_needs_one(tiny_model_folder: Path) -> None:
    """ppo on a trainer that has none; and other algorithms leave a critic as it is."""
    model = load_model(ModelSettings(path=str(tiny_model_folder)))
    with pytest.raises(UserError, match="algorithm 'ppo' needs a critic"):
        ModelTrainer(model, TrainerSettings(), AlgorithmSettings(name="ppo"), lease=ComputeLease())
    trainer = make_trainer(tiny_model_folder)
    assert "critic/loss" not in trainer.train_batch(Batch.of(rows()), SUPERVISED)
    assert critic_of(trainer).optimizer.num_batches == 0


def test_a_saved_head_is_gone_on_with(
    tiny_model_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A folder with a score.weight, as transformers saves a reward model; how large the critic is stands in the log."""
    from safetensors.torch import load_file, save_file

    for path in tiny_model_folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    tensors = load_file(tmp_path / "model.safetensors")
    width = next(each.shape[0] for name, each in tensors.items() if name.endswith("model.norm.weight"))
    save_file({**tensors, HEAD_NAME: torch.full((1, width), 0.25)}, tmp_path / "model.safetensors", {"format": "pt"})
    with caplog.at_level(logging.INFO):
        critic = load_critic(ModelSettings(path=str(tiny_model_folder)), CriticSettings(path=str(tmp_path)))
    assert critic.model.head_weight.unique().tolist() == [0.25] and critic.model.head_weight.shape == (1, width)
    assert "MB to train them" in caplog.text
