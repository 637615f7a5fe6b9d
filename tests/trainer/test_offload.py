"""What the card holds of a trainer whose optimizer is in the host's memory, always or while somebody else has the card,
on a device without data in the place of a card."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from ludus.engines.lease import ComputeLease
from ludus.trainer.offload import HostMemory, PinnedMemory
from ludus.trainer.optimizer import MasterOptimizer
from ludus.trainer.rounding import Rounding
from ludus.trainer.settings import OptimizerSettings, TrainerSettings
from ludus.trainer.step import ModelTrainer
from tests.models.no_data import NO_DATA, model_without_data, without_data
from tests.trainer.test_no_data import VOCAB, batch, trained


def state_of(optimizer: MasterOptimizer) -> Iterator[Tensor]:
    """Masters, gradients and moments; how many steps there were is one number."""
    state = optimizer.state()
    yield from state["masters"].values()
    yield from optimizer._grads.values()
    yield from (own[key] for own in state["moments"].values() for key in ("exp_avg", "exp_avg_sq"))


def on_card(optimizer: MasterOptimizer) -> int:
    """Bytes of them that are on the card."""
    return sum(each.nbytes for each in state_of(optimizer) if each.device == NO_DATA)


@pytest.mark.parametrize("moments", ["fp32", "bf16"])
@pytest.mark.parametrize("lora", [False, True], ids=["whole", "lora"])
def test_the_card_holds_the_state_while_a_batch_is_trained(
    lora: bool, moments: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it then, and nothing but weights before and after; each tensor keeps its place in the host's memory."""
    with without_data(monkeypatch):
        model = model_without_data(vocab_size=VOCAB, lora=lora)
        settings = TrainerSettings(optimizer=OptimizerSettings.model_validate({"moments": moments}))
        trainer = ModelTrainer(model, settings, lease=ComputeLease())
        optimizer = trainer.optimizer
        num_trained = sum(each.numel() for each in model.trainable.values())
        assert on_card(optimizer) == 8 * num_trained  # masters, and room for gradients
        trainer.offload()
        assert on_card(optimizer) == 0
        seen: list[int] = []
        end_batch = optimizer.step

        def step() -> Any:
            result = end_batch()
            seen.append(on_card(optimizer))
            return result

        monkeypatch.setattr(optimizer, "step", step)
        for _ in range(2):
            trainer.train_batch(batch(2))
            assert on_card(optimizer) == 0
        per_weight = 8 + {"fp32": 8, "bf16": 4}[moments]
        assert seen == [per_weight * num_trained] * 4
        assert all(each.device == NO_DATA for each in model.trainable.values())


@pytest.mark.parametrize("critic", ["separate", "shared"])
def test_a_critic_has_its_turn_too(critic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It measures without its optimizer, and its state goes when the policy's does."""
    with without_data(monkeypatch):
        trainer = trained({"name": "ppo"}, critic=critic)
        trainer.offload()
        trainer.measure(batch(), {"values"})
        trainer.train_batch(batch())
        assert on_card(trainer.optimizer) == 0
        if trainer.critic is not None:
            assert on_card(trainer.critic.optimizer) == 0


def test_weights_are_rounded_on_the_card_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is published comes from the host's masters, and lies on the card; so does what a checkpoint held."""
    with without_data(monkeypatch):
        trainer = trained({})
        trainer.offload()
        assert all(weight.device == NO_DATA for _, weight in trainer.publish().named_tensors())
        trainer.publish().copy_into_shared()
        trainer.save(tmp_path)
        trainer.load(tmp_path)
        assert on_card(trainer.optimizer) == 0
        trainer.train_batch(batch())
        assert on_card(trainer.optimizer) == 0


def test_gradients_wait_for_the_rest_of_their_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was accumulated so far is moved with the rest, and is still there."""
    with without_data(monkeypatch):
        trainer = trained({})
        trainer.offload()
        trainer.forward_backward(batch())
        kept = trainer.optimizer.gradients()
        assert kept.keys() == trainer.model.trainable.keys()
        assert on_card(trainer.optimizer) == 0
        with trainer.optimizer.on_device():
            assert all(each.device == NO_DATA for each in trainer.optimizer.gradients().values())


def test_an_error_leaves_nothing_on_the_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever failed in the middle of a batch."""
    with without_data(monkeypatch):
        trainer = trained({})
        trainer.offload()
        with pytest.raises(ZeroDivisionError), trainer.optimizer.on_device():
            raise ZeroDivisionError
        assert on_card(trainer.optimizer) == 0


@pytest.mark.parametrize("moments", ["fp32", "bf16"])
def test_moved_state_trains_to_equal_bits(moments: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies there and back, here from one place of the processor's memory to another, change nothing; nor does the
    order in which gradients are finished, which is not that of the weights."""

    class Elsewhere(HostMemory):
        """Everything moves, though all of it is the processor's memory."""

        def __init__(self, _device: torch.device) -> None:
            super().__init__(torch.device("cpu", 0))

        def take(self, tensors: Mapping[str, Tensor]) -> None:
            for tensor in tensors.values():
                torch.utils.swap_tensors(tensor, tensor.clone())

    monkeypatch.setattr("ludus.trainer.optimizer.HostMemory", Elsewhere)
    ends = []
    for is_offloaded in (False, True):
        generator = torch.Generator().manual_seed(0)
        weights = {f"w{number}": Parameter(torch.randn(7, generator=generator)) for number in range(60)}
        settings = OptimizerSettings.model_validate({"lr": 0.1, "moments": moments})
        optimizer = MasterOptimizer(weights, settings, Rounding("dither", 0, torch.device("cpu")))
        if is_offloaded:
            optimizer.offload()
        for step in range(3):
            with optimizer.on_device():
                (torch.stack([each.sin().sum() for each in weights.values()]).sum() * (step + 1)).backward()
                optimizer.step()
            optimizer.copy_to_parameters()
        ends.append(optimizer.masters)
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


@pytest.mark.parametrize("moments", ["fp32", "bf16"])
@pytest.mark.parametrize("lora", [False, True], ids=["whole", "lora"])
def test_an_optimizer_in_the_hosts_memory(
    lora: bool, moments: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Masters and moments are never on the card, gradients always: through steps, publishing, saving and resuming."""
    with without_data(monkeypatch):
        optimizer = OptimizerSettings.model_validate({"moments": moments})
        trainer = trained({}, lora=lora, optimizer=optimizer, offload="optimizer", num_minibatches=2)
        per_weight = 4  # the gradient
        num_trained = sum(each.numel() for each in trainer.model.trainable.values())
        trainer.publish().copy_into_shared()
        assert all(weight.device == NO_DATA for _, weight in trainer.publish().named_tensors())
        trainer.save(tmp_path)
        trainer.load(tmp_path)
        trainer.train_batch(batch())
        assert on_card(trainer.optimizer) == per_weight * num_trained
        assert all(each.device == NO_DATA for each in trainer.optimizer._grads.values())
        trainer.offload()
        trainer.train_batch(batch())
        assert on_card(trainer.optimizer) == 0


def test_a_critics_optimizer_is_there_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a head on the policy's trunk, which is one more weight of the policy's optimizer."""
    with without_data(monkeypatch):
        trainer = trained({"name": "ppo"}, critic="separate", offload="optimizer")
        assert trainer.critic is not None
        for own in (trainer.optimizer, trainer.critic.optimizer):
            assert all(each.device.type == "cpu" for each in own.masters.values())
        trainer = trained({"name": "ppo"}, critic="shared", offload="optimizer")
        assert all(each.device.type == "cpu" for each in trainer.optimizer.masters.values())


def test_on_a_processor_nothing_is_elsewhere(caplog: pytest.LogCaptureFixture) -> None:
    """The setting is told to have no effect."""
    weights = {"w": Parameter(torch.ones(3))}
    optimizer = MasterOptimizer(weights, OptimizerSettings(), Rounding("dither", 0, torch.device("cpu")), in_host=True)
    assert optimizer._pinned is None
    assert "trainer.offload=optimizer has no effect" in caplog.text


def test_tensors_are_cut_from_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """None overlaps another, each begins at a page of memory, and what is larger than a block gets one of its own."""
    monkeypatch.setattr("ludus.trainer.offload._BLOCK_BYTES", 1 << 14)
    memory = PinnedMemory(torch.device("cpu"))
    shapes = [(3, 5), (1000,), (0, 4), (5000,), (7, 2, 2), (1024,)]
    made = [memory.empty(shape, dtype) for shape in shapes for dtype in (torch.float32, torch.bfloat16)]
    for number, each in enumerate(made):
        each.fill_(number)
    assert [tuple(each.shape) for each in made] == [shape for shape in shapes for _ in range(2)]
    assert all(bool((each == number).all()) for number, each in enumerate(made))
    assert sum(len(block) for block, _ in memory._blocks) <= 4 * (1 << 14) + (1 << 15)
