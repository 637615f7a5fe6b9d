"""AdamW with its moments in fp32 or in bf16, on the weights' device or from the host's memory.

Knows: weights and gradients by name.  Knows not: schedules, clipping, who computes gradients.
Invariants: equal gradients give equal weights bit by bit, also when the state went through a checkpoint in between;
where weights and moments lie changes no bit of what a device computes.

Source: Loshchilov and Hutter, "Decoupled Weight Decay Regularization" (arXiv 1711.05101) alg. 2.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from ludus.kernels.adamw import AdamWStep, NativeHalfStep
from ludus.kernels.build import build_library, obtain
from ludus.kernels.library import cost_level
from ludus.trainer.offload import PinnedMemory
from ludus.trainer.rounding import mixed_bits, round_up_above
from ludus.trainer.settings import OptimizerSettings

_log = logging.getLogger(__name__)

# How many numbers torch's operations handle at a time (on a GPU, or without a compiler): each takes some 40 bytes more
# meanwhile, and a large embedding as a whole would take 12 GB.
_CHUNK = 1 << 24
Moments = dict[str, dict[str, Tensor]]
"""By name of the weight: `exp_avg`, `exp_avg_sq` of the weight's shape, and `step`, the number of its updates."""


class AdamW(Protocol):
    """AdamW, whichever type its moments have."""

    def step(self, gradients: Mapping[str, Tensor], lr: float) -> None:
        """Update every weight that has a gradient."""

    def moments(self) -> Moments:
        """The moments of every weight that was ever updated; the tensors are the optimizer's own, not copies."""

    def beside_weights(self) -> dict[str, Tensor]:
        """Its tensors that are on the device of the weights, by names that nothing else has."""

    def take_over(self, moments: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Replace all moments by copies of these, of whichever type; weights without any start anew."""


def make_adamw(
    weights: Mapping[str, Tensor], settings: OptimizerSettings, *, host: PinnedMemory | None = None
) -> AdamW:
    """AdamW of fp32 `weights`, which it changes in place, with moments of the type that the settings name.

    host: weights and moments lie there, and a step is computed on its device. None: on the weights' device.
    """
    if host is not None:
        passed = torch_half_step if settings.moments == "bf16" else fused_step
        return OneByOneAdamW(weights, settings, InPieces(passed, host.device), host)
    if settings.moments == "fp32":
        return TorchAdamW(weights, settings)
    return OneByOneAdamW(weights, settings, choose_half_step(next(iter(weights.values()))))


class TorchAdamW:
    """torch's fused AdamW: moments in fp32."""

    def __init__(self, weights: Mapping[str, Tensor], settings: OptimizerSettings) -> None:
        self._weights = weights
        groups: list[dict[str, Any]] = [
            {"params": [each for each in weights.values() if _decay(each, settings) == decay], "weight_decay": decay}
            for decay in sorted({_decay(each, settings) for each in weights.values()})
        ]
        self._adamw = torch.optim.AdamW(groups, lr=settings.lr, betas=settings.betas, eps=settings.eps, fused=True)

    def step(self, gradients: Mapping[str, Tensor], lr: float) -> None:
        for name, weight in self._weights.items():
            weight.grad = gradients.get(name)
        for group in self._adamw.param_groups:
            group["lr"] = lr
        self._adamw.step()
        for weight in self._weights.values():
            weight.grad = None  # gradients are somebody else's, who may move them

    def moments(self) -> Moments:
        state = self._adamw.state
        return {name: dict(state[weight]) for name, weight in self._weights.items() if weight in state}

    def beside_weights(self) -> dict[str, Tensor]:
        return {f"{key}/{name}": each for name, own in self.moments().items() for key, each in own.items()}

    def take_over(self, moments: Mapping[str, Mapping[str, Tensor]]) -> None:
        for name, weight in self._weights.items():
            self._adamw.state.pop(weight, None)
            if name in moments:
                # wherever they come from, they are moved to the weight's device
                own = {key: each.to(weight.device, torch.float32, copy=True) for key, each in moments[name].items()}
                self._adamw.state[weight] = own


class StepOne(Protocol):
    """Updates one weight and its moments in place."""

    def __call__(self, weight: Tensor, gradient: Tensor, first: Tensor, second: Tensor, step: AdamWStep) -> None: ...


class OneByOneAdamW:
    """One weight after the other: with moments in bf16, or with weights in the host's memory.

    Moments in bf16 are rounded stochastically: half the memory, and small changes are kept on average.
    Source of the rounding: Zamirai et al., "Revisiting BFloat16 Training" (arXiv 2010.06192).
    """

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        settings: OptimizerSettings,
        step_one: StepOne,
        host: PinnedMemory | None = None,
    ) -> None:
        """host: where moments are. None: beside the weights."""
        self._weights = weights
        self._settings = settings
        self._moments: Moments = {}
        self._numbers = {name: number for number, name in enumerate(weights)}
        self._step_one = step_one
        self._host = host
        self._dtype = torch.bfloat16 if settings.moments == "bf16" else torch.float32

    @torch.no_grad()
    def step(self, gradients: Mapping[str, Tensor], lr: float) -> None:
        for name, gradient in gradients.items():
            weight, own = self._weights[name], self._own(name)
            own["step"] += 1
            num_steps = int(own["step"])
            settings = self._settings
            # an odd multiple of the step changes all bits of the seed; weights differ in the lowest bits
            seed = (num_steps * 0x9E3779B1 + self._numbers[name]) & 0xFFFFFFFF
            numbers = AdamWStep(lr, settings.betas, settings.eps, _decay(weight, settings), num_steps, seed)
            self._step_one(weight, gradient, own["exp_avg"], own["exp_avg_sq"], numbers)
        if self._host is not None:
            self._host.wait()

    def moments(self) -> Moments:
        return {name: dict(own) for name, own in self._moments.items()}

    def beside_weights(self) -> dict[str, Tensor]:
        kinds = ("exp_avg", "exp_avg_sq")  # how many steps there were is known on the processor
        return {f"{key}/{name}": own[key] for name, own in self._moments.items() for key in kinds}

    @torch.no_grad()
    def take_over(self, moments: Mapping[str, Mapping[str, Tensor]]) -> None:
        for name in self._weights:
            if name not in moments:
                self._moments.pop(name, None)
                continue
            saved, own = moments[name], self._own(name)
            for key in ("exp_avg", "exp_avg_sq"):
                own[key].copy_(saved[key])
            own["step"] = saved["step"].float().cpu().clone()

    def _own(self, name: str) -> dict[str, Tensor]:
        """The moments of a weight; they begin as zeros."""
        if name not in self._moments:
            weight = self._weights[name]
            made = (
                torch.empty_like(weight, dtype=self._dtype)
                if self._host is None
                else self._host.empty(weight.shape, self._dtype)
                for _ in range(2)
            )
            first, second = (each.zero_() for each in made)
            self._moments[name] = {"exp_avg": first, "exp_avg_sq": second, "step": torch.tensor(0.0)}
        return self._moments[name]


class InPieces:
    """A step on a device, to which weight and moments are brought from the host's memory piece by piece.

    Every number's step is its own, so that the pieces change no bit; the gradient is on the device already.
    """

    def __init__(self, step_one: StepOne, device: torch.device) -> None:
        self._step_one = step_one
        self._device = device

    def __call__(self, weight: Tensor, gradient: Tensor, first: Tensor, second: Tensor, step: AdamWStep) -> None:
        flat = [each.view(-1) for each in (weight, first, second)]
        gradients = gradient.view(-1)
        for start in range(0, weight.numel(), _CHUNK):
            places = [each[start : start + _CHUNK] for each in flat]
            # what was brought before goes back first: all of it is queued on one stream
            moved, own_first, own_second = (each.to(self._device, non_blocking=True, copy=True) for each in places)
            piece = gradients[start : start + _CHUNK]
            self._step_one(moved, piece, own_first, own_second, replace(step, start=start))
            for place, own in zip(places, (moved, own_first, own_second), strict=True):
                place.copy_(own, non_blocking=True)


def fused_step(weight: Tensor, gradient: Tensor, first: Tensor, second: Tensor, step: AdamWStep) -> None:
    """One step with moments in fp32, by the kernel that torch's fused AdamW has."""
    before = torch.full((), step.num_steps - 1.0, device=weight.device)
    beta1, beta2 = step.betas
    adamw(
        [weight], [gradient], [first], [second], [], [before], fused=True, amsgrad=False, maximize=False,
        beta1=beta1, beta2=beta2, lr=step.lr, weight_decay=step.weight_decay, eps=step.eps,
    )  # fmt: skip


def choose_half_step(weight: Tensor) -> StepOne:
    """For moments in bf16: the native implementation for weights on the CPU; torch's operations otherwise."""
    unsupported_reason = None if weight.device.type == "cpu" else f"the weights are on {weight.device}"
    native = obtain(lambda: NativeHalfStep(build_library("adamw")), unsupported_reason)
    if not isinstance(native, str):
        return native
    _log.log(
        cost_level(weight.device), "AdamW with moments in bf16 runs on torch's operations, which are slower: %s", native
    )
    return torch_half_step


def torch_half_step(weight: Tensor, gradient: Tensor, first: Tensor, second: Tensor, step: AdamWStep) -> None:
    """One step with moments in bf16 by torch's operations, on any device."""
    flat = [each.view(-1) for each in (weight, gradient, first, second)]
    for start in range(0, weight.numel(), _CHUNK):
        part = replace(step, start=step.start + start)
        _half_step(*(each[start : start + _CHUNK] for each in flat), step=part)


def _half_step(weight: Tensor, gradient: Tensor, first: Tensor, second: Tensor, *, step: AdamWStep) -> None:
    beta1, beta2 = step.betas
    m = first.float().lerp_(gradient, 1 - beta1)
    v = second.float().mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    size = (v / (1 - beta2**step.num_steps)).sqrt_().add_(step.eps)
    weight.mul_(1 - step.lr * step.weight_decay).addcdiv_(m, size, value=-step.lr / (1 - beta1**step.num_steps))
    chance = mixed_bits(weight.numel(), step.start, step.seed, weight.device)
    first.copy_(round_up_above(m, chance))
    second.copy_(round_up_above(v, chance >> 16))


def _decay(weight: Tensor, settings: OptimizerSettings) -> float:
    """Only matrices are decayed."""
    return settings.weight_decay if weight.ndim > 1 else 0.0
