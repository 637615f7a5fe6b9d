"""On an Apple GPU: the same tokens and weights as on the CPU, with float64 nowhere near the device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ludus.algorithms.exact import exact
from ludus.algorithms.pack import Batch, TrainSequence, pack
from ludus.algorithms.settings import AlgorithmSettings
from ludus.engines.lease import ComputeLease
from ludus.engines.local.core import EngineCore
from ludus.engines.local.kernels.eager import EagerKernel
from ludus.engines.local.settings import InferenceSettings
from ludus.errors import UserError
from ludus.models.device import choose_device
from ludus.models.dtype import choose_dtype
from ludus.models.load import LoadedModel, load_model
from ludus.models.settings import LoraSettings, ModelSettings
from ludus.text.tokenizer import Tokenizer
from ludus.trainer.rounding import mixed_bits
from ludus.trainer.settings import OptimizerSettings, TrainerSettings
from ludus.trainer.step import ModelTrainer
from ludus.types import Call, Sampled
from tests.engines.local.test_no_data import SAMPLINGS
from tests.models.apple import AppleTensor, apple_gpu


@pytest.fixture
def available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)


def load(folder: Path, device: str, **more: object) -> LoadedModel:
    return load_model(ModelSettings(path=str(folder), device=device, dtype="float32", **more), seed=0)


def test_it_is_there_or_missed_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(UserError, match=r"model\.device='mps' is an Apple GPU, and torch .*; use cpu or auto"):
        choose_device("mps")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert choose_device("mps") == torch.device("mps", 0)
    assert choose_device("auto").type != "mps"


@pytest.mark.parametrize(("is_new", "name"), [(True, "bfloat16"), (False, "float32")])
def test_bf16_came_with_macos_14(is_new: bool, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_macos_or_newer", lambda *version: is_new and version == (14, 0))
    assert choose_dtype(torch.device("mps")) == name


def test_the_stand_in_refuses_what_such_a_gpu_refuses() -> None:
    """float64, and operands on two devices; it computes the rest."""
    with apple_gpu():
        x = torch.ones(2, 2, device="mps")
        assert isinstance(x, AppleTensor) and x.device.type == "mps" and (x + x).sum().item() == 8
        with pytest.raises(TypeError, match="float64"):
            x.double()
        with pytest.raises(RuntimeError, match="same device"):
            x + torch.ones(2, 2)
        assert exact(x).dtype == torch.float64 and exact(x).device.type == "cpu"


def answers(folder: Path, device: str) -> dict[str, Sampled]:
    """Prompts in chunks beside answers that go on, in all ways to sample."""
    settings = InferenceSettings(kv_bytes=2**22, max_batch_tokens=32, kernels="eager")
    core = EngineCore(load(folder, device), Tokenizer.load(folder), settings, EagerKernel())
    found: dict[str, Sampled] = {}
    for number, (name, sampling) in enumerate(SAMPLINGS.items()):
        prompt = (*range(3, 43), 50 + number)
        core.add(Call(name, "s", prompt, replace(sampling, max_new_tokens=4)), seed=number)
    while not core.is_idle:
        found |= {each.call_id: each.answer for each in core.step() if each.answer is not None}
    return found


@pytest.mark.usefixtures("available")
def test_it_samples_what_the_processor_samples(tiny_model_folder: Path) -> None:
    """By torch's operations, with sums of probabilities on the processor."""
    expected = answers(tiny_model_folder, "cpu")
    with apple_gpu():
        got = answers(tiny_model_folder, "mps")
    assert {name: each.token_ids for name, each in got.items()} == {
        name: each.token_ids for name, each in expected.items()
    }
    for name, each in got.items():
        assert each.logprobs == pytest.approx(expected[name].logprobs, abs=1e-4), name
        assert each.kept_ids == expected[name].kept_ids


def rows() -> Batch:
    sequences = [
        TrainSequence(
            token_ids=tuple(range(start, start + 20)),
            target_idx=tuple(range(8, 20)),
            advantages=(1.0, -0.5) * 6,
            weights=(1 / 24,) * 12,
            logprobs=(-5.0,) * 12,
            versions=(0,) * 12,
            temperatures=(1.0,) * 12,
        )
        for start in (10, 40)
    ]
    return Batch.of(pack(sequences, row_tokens=64))


@pytest.mark.parametrize("lora", [None, LoraSettings(rank=4)], ids=["all weights", "LoRA"])
@pytest.mark.parametrize("moments", ["fp32", "bf16"])
@pytest.mark.usefixtures("available")
def test_it_learns_what_the_processor_learns(
    lora: LoraSettings | None, moments: str, tiny_models: Callable[[str], Path]
) -> None:
    """Two steps, published: gradients, moments, masters and weights stay on the device."""
    folder = tiny_models("qwen2")  # with a head of its own: in the stand-in a weight that moves is no longer shared

    def trained(device: str) -> dict[str, torch.Tensor]:
        model = load(folder, device, lora=lora)
        optimizer = OptimizerSettings(lr=1e-2, moments=moments)
        settings = TrainerSettings(row_tokens=64, optimizer=optimizer)
        trainer = ModelTrainer(model, settings, AlgorithmSettings(), lease=ComputeLease())
        for _ in range(2):
            trainer.train_batch(rows())
            trainer.publish().copy_into_shared()
        assert {each.device.type for each in trainer.optimizer.masters.values()} == {device}
        return {name: each.detach().cpu() for name, each in model.trainable.items()}

    expected = trained("cpu")
    with apple_gpu():
        got = trained("mps")
    assert got.keys() == expected.keys()
    for name, weight in expected.items():
        torch.testing.assert_close(got[name], weight, atol=2e-3, rtol=2e-2, msg=name)


def test_its_roundings_are_those_of_every_device() -> None:
    """Numbers that int32 does not hold are brought into its range before they are narrowed."""
    for key in (0, 0x7FFFFFFF, 0xFFFFFFFF, 0x9E3779B9):
        with apple_gpu():
            own = mixed_bits(64, 5, key, torch.device("mps", 0)).cpu()
        assert torch.equal(own, mixed_bits(64, 5, key, torch.device("cpu")))
