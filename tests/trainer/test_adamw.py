from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from ludus.kernels.adamw import AdamWStep, NativeHalfStep
from ludus.kernels.build import build_library
from ludus.trainer.adamw import InPieces, make_adamw, torch_half_step
from ludus.trainer.offload import PinnedMemory
from ludus.trainer.settings import OptimizerSettings

HalfStep = Callable[[Tensor, Tensor, Tensor, Tensor, AdamWStep], None]
CPU = torch.device("cpu")
HALF_STEPS = [NativeHalfStep(build_library("adamw")), torch_half_step]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("half_step", HALF_STEPS)
@pytest.mark.parametrize("count", [1, 16, 5003])
def test_a_first_step_equals_plain_adamw(half_step: HalfStep, count: int) -> None:
    """The weights move by the exact moments; only what is kept of these is rounded, to a neighbour in bf16."""
    weight, gradient = draw(count), draw(count, seed=1)
    plain = weight.clone().requires_grad_()
    plain.grad = gradient.clone()
    torch.optim.AdamW([plain], lr=0.1, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1).step()
    first, second = torch.zeros(2, count, dtype=torch.bfloat16)
    half_step(weight, gradient, first, second, AdamWStep(0.1, (0.9, 0.95), 1e-8, 0.1, 1, seed=7))
    torch.testing.assert_close(weight, plain.detach())
    torch.testing.assert_close(first.float(), 0.1 * gradient, rtol=2**-7, atol=0)
    torch.testing.assert_close(second.float(), 0.05 * gradient**2, rtol=2**-7, atol=0)


@pytest.mark.parametrize("half_step", HALF_STEPS)
def test_changes_below_the_resolution_add_up(half_step: HalfStep) -> None:
    """A second moment that should creep from 1 to 1.03 does, though no step is as large as half a step of bf16."""
    weight, first = torch.zeros(2, 4096)
    first, second = first.bfloat16(), torch.ones(4096, dtype=torch.bfloat16)
    gradient = torch.full((4096,), 1.03**0.5)
    for number in range(1, 61):
        half_step(weight, gradient, first, second, AdamWStep(1e-3, (0.9, 0.95), 1e-8, 0.0, number, seed=number))
    expected = 1.03 - 0.03 * 0.95**60
    assert float(second.float().mean()) == pytest.approx(expected, abs=1e-3)
    assert float(first.float().mean()) == pytest.approx(1.03**0.5 * (1 - 0.9**60), abs=2e-3)


def test_a_weight_moves_in_parts_as_it_does_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a card a large one is moved so many numbers at a time: equal bits, and little memory beside it."""

    def moved() -> list[Tensor]:
        own = [draw(40, 70), draw(40, 70, seed=1), *torch.zeros(2, 40, 70, dtype=torch.bfloat16)]
        for number in (1, 2):
            torch_half_step(*own, AdamWStep(0.1, (0.9, 0.95), 1e-8, 0.1, number, seed=7 * number))
        return own

    whole = moved()
    monkeypatch.setattr("ludus.trainer.adamw._CHUNK", 64)
    assert all(torch.equal(part, each) for part, each in zip(moved(), whole, strict=True))


def test_bf16_moments_train_as_well_as_fp32() -> None:
    """On a regression with noisy gradients both kinds of moments end at the same loss, in the same number of steps."""
    inputs, hidden = draw(512, 24, seed=2), draw(24, 8, seed=3)
    answers = inputs @ hidden + 0.1 * draw(512, 8, seed=4)
    losses = {}
    for moments in ("fp32", "bf16"):
        weight = torch.zeros(24, 8)
        settings = OptimizerSettings.model_validate({"moments": moments})
        adamw = make_adamw({"weight": weight}, settings)
        for step in range(300):
            rows = torch.randint(0, 512, (32,), generator=torch.Generator().manual_seed(step))
            error = inputs[rows] @ weight - answers[rows]
            adamw.step({"weight": inputs[rows].t() @ error / 32}, lr=0.03 * (1 - step / 300))
        losses[moments] = float((inputs @ weight - answers).pow(2).mean())
        assert adamw.moments()["weight"]["exp_avg_sq"].dtype == DTYPES[moments]
    assert losses["fp32"] < 0.011  # the noise alone is 0.01
    assert losses["bf16"] == pytest.approx(losses["fp32"], rel=0.02)


def test_moments_of_one_type_go_on_in_the_other() -> None:
    """A run that stored moments in fp32 may go on with bf16, and the other way round."""
    for before, after in (("fp32", "bf16"), ("bf16", "fp32")):
        weight = torch.ones(3, 4)
        first, second = (
            make_adamw({"weight": weight}, OptimizerSettings.model_validate({"moments": moments}))
            for moments in (before, after)
        )
        first.step({"weight": torch.ones(3, 4)}, lr=0.1)
        second.take_over(first.moments())
        second.step({"weight": torch.ones(3, 4)}, lr=0.1)
        torch.testing.assert_close(weight, torch.full((3, 4), 0.8), atol=2e-3, rtol=0)
        assert float(second.moments()["weight"]["step"]) == 2


@pytest.mark.parametrize("moments", ["fp32", "bf16"])
def test_a_step_from_the_hosts_memory_has_equal_bits(moments: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights and moments that pass through a device piece by piece move as those that lie there, also after a
    checkpoint; here both places are the processor's memory."""
    monkeypatch.setattr("ludus.trainer.adamw._CHUNK", 64)
    monkeypatch.setattr("ludus.trainer.adamw.choose_half_step", lambda weight: torch_half_step)
    settings = OptimizerSettings.model_validate({"moments": moments, "weight_decay": 0.1})
    ends = []
    for host in (None, PinnedMemory(CPU)):
        weights = {"matrix": draw(40, 70), "bias": draw(30, seed=1), "still": draw(5, seed=2)}
        adamw = make_adamw(weights, settings, host=host)
        for step in range(4):
            if step == 2:
                saved, adamw = adamw.moments(), make_adamw(weights, settings, host=host)
                adamw.take_over(saved)
            gradients = {name: draw(*weights[name].shape, seed=step + 7) for name in ("matrix", "bias")}
            adamw.step(gradients, lr=0.1 / (step + 1))
        assert adamw.moments().keys() == {"matrix", "bias"}
        kept = [own[key] for own in adamw.moments().values() for key in ("exp_avg", "exp_avg_sq")]
        ends.append([*weights.values(), *kept])
    assert all(torch.equal(one, other) for one, other in zip(*ends, strict=True))


def test_a_piece_is_all_that_is_brought(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the size of a weight; the host's own numbers change when the piece goes back."""
    monkeypatch.setattr("ludus.trainer.adamw._CHUNK", 64)
    weight, first, second, gradient = draw(10, 20), torch.zeros(10, 20), torch.zeros(10, 20), draw(10, 20, seed=1)
    before, seen = weight.clone(), []

    def step_one(own: Tensor, piece: Tensor, *moments: Tensor | AdamWStep) -> None:
        assert torch.equal(own, before.view(-1)[len(seen) * 64 :][: len(own)])
        seen.append(len(own))
        own.sub_(piece)

    InPieces(step_one, CPU)(weight, gradient, first, second, AdamWStep(0.1, (0.9, 0.95), 1e-8, 0.0, 1, seed=7))
    assert seen == [64, 64, 64, 8]
    assert torch.equal(weight, before - gradient)
