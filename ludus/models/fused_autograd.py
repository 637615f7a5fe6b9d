"""The fused parts under autograd: what each computes, and the little that it keeps for the backward pass.

Knows: row-wise operations, products, autograd.  Knows not: modules, where weights come from.
Invariant: with gradients on, a norm keeps its input, projections of one input keep that input, a gated product keeps
gate and up, an adapter its input, rotary positions their angles; with gradients off the same operations run without any
graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional

from ludus.kernels.rowwise import NormRule
from ludus.models.operations import torch_linear
from ludus.models.rowwise import Rowwise


@dataclass(frozen=True, slots=True)
class LoraAdapter:
    """What is added to a product with x: scale * (x @ down.T) @ up.T; down: (rank, D), up: (N, rank)."""

    down: Tensor
    up: Tensor
    scale: float


def norm(x: Tensor, weight: Tensor, rule: NormRule, rowwise: Rowwise) -> Tensor:
    """RMSNorm over the last dimension."""
    if not torch.is_grad_enabled():
        return rowwise.norm(x, weight, rule)
    return cast(Tensor, _Norm.apply(x, weight, rule, rowwise))  # type: ignore[no-untyped-call]


def gate(gate: Tensor, up: Tensor, rowwise: Rowwise) -> Tensor:
    """silu(gate) * up."""
    if not torch.is_grad_enabled():
        return rowwise.gate(gate, up)
    return cast(Tensor, _Gate.apply(gate, up, rowwise))  # type: ignore[no-untyped-call]


def gate_product(
    gate: Tensor, up: Tensor, weight: Tensor, bias: Tensor | None, rowwise: Rowwise, adapter: LoraAdapter | None = None
) -> Tensor:
    """(silu(gate) * up) @ weight.T + bias under autograd; the factor of `weight` is computed twice instead of kept.

    adapter: of the product with `weight`. None: it has none.
    """
    own = (None, None, 0.0) if adapter is None else (adapter.down, adapter.up, adapter.scale)
    return cast(Tensor, _GateProduct.apply(gate, up, weight, bias, rowwise, *own))  # type: ignore[no-untyped-call]


def rotate(q: Tensor, k: Tensor, cosine: Tensor, sine: Tensor, rowwise: Rowwise) -> tuple[Tensor, Tensor]:
    """q and k turned by the angles of their tokens; shapes as in Rowwise.rotate."""
    if not torch.is_grad_enabled():
        return rowwise.rotate(q, k, cosine, sine)
    return cast(tuple[Tensor, Tensor], _Rotate.apply(q, k, cosine, sine, rowwise))  # type: ignore[no-untyped-call]


def project(
    x: Tensor, weight: Tensor, bias: Tensor | None, sizes: Sequence[int], parameters: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """x @ weight.T + bias under autograd, split into parts of `sizes` columns.

    parameters: the weights that `weight` holds below each other, then the biases that `bias` holds, if any. They get
    the gradients; `weight` and `bias` are the same memory in one piece.
    """
    return cast(tuple[Tensor, ...], _Project.apply(x, weight, bias, list(sizes), *parameters))  # type: ignore[no-untyped-call]


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, rule: NormRule, rowwise: Rowwise) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.rule, ctx.rowwise = rule, rowwise
        return rowwise.norm(x, weight, rule)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        grad_x, grad_weight = ctx.rowwise.norm_backward(grad, x, weight, ctx.rule, wants_weight=ctx.needs_input_grad[1])
        return grad_x, None if grad_weight is None else grad_weight.to(weight.dtype), None, None


class _Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, rowwise: Rowwise) -> Tensor:
        ctx.save_for_backward(gate, up)
        ctx.rowwise = rowwise
        return rowwise.gate(gate, up)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        gate, up = ctx.saved_tensors
        grad_gate, grad_up, _ = ctx.rowwise.gate_backward(grad, gate, up, wants_output=False)
        return grad_gate, grad_up, None


class _GateProduct(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        gate: Tensor,
        up: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        rowwise: Rowwise,
        lora_down: Tensor | None,
        lora_up: Tensor | None,
        scale: float,
    ) -> Tensor:
        active = rowwise.gate(gate, up)
        low = added = None
        if lora_down is not None and lora_up is not None:
            low = functional.linear(active, lora_down) * scale
            added = functional.linear(low, lora_up)
        product = torch_linear(active, weight, bias, added)
        ctx.save_for_backward(gate, up, weight, low, lora_down, lora_up)
        ctx.rowwise, ctx.scale = rowwise, scale
        return product

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        gate, up, weight, low, lora_down, lora_up = ctx.saved_tensors
        wants_weight, wants_bias = ctx.needs_input_grad[2:4]
        grad_active, grad_low = grad @ weight, None
        if low is not None:
            grad_low = (_flat(grad) @ lora_up).mul_(ctx.scale)
            _flat(grad_active).addmm_(grad_low, lora_down)
        wants_active = wants_weight or grad_low is not None
        grad_gate, grad_up, active = ctx.rowwise.gate_backward(grad_active, gate, up, wants_output=wants_active)
        grad_weight = _flat(grad).t() @ _flat(active) if wants_weight else None
        grad_bias = _flat(grad).sum(0) if wants_bias else None
        grad_down = None if grad_low is None else grad_low.t() @ _flat(active)
        grad_up_weight = None if low is None else _flat(grad).t() @ _flat(low)
        return grad_gate, grad_up, grad_weight, grad_bias, None, grad_down, grad_up_weight, None


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, cosine: Tensor, sine: Tensor, rowwise: Rowwise
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(cosine, sine)
        ctx.rowwise = rowwise
        return rowwise.rotate(q, k, cosine, sine)

    @staticmethod
    def backward(ctx: Any, grad_q: Tensor, grad_k: Tensor) -> tuple[Tensor | None, ...]:
        return *ctx.rowwise.rotate(grad_q, grad_k, *ctx.saved_tensors, back=True), None, None, None


class _Project(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, sizes: list[int], *parameters: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.trains_weight = any(each.requires_grad for each in parameters[: len(sizes)])
        ctx.save_for_backward(x if ctx.trains_weight else None)
        ctx.weight, ctx.sizes = weight, sizes
        return torch.split(functional.linear(x, weight, bias), sizes, -1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad = _joined(grads)
        wanted_x, _, _, _, *wanted = ctx.needs_input_grad
        count = len(ctx.sizes)
        parts: list[Tensor | None] = [None] * len(wanted)
        if ctx.trains_weight:
            (x,) = ctx.saved_tensors
            parts[:count] = torch.split(_flat(grad).t() @ _flat(x), ctx.sizes)
        if any(wanted[count:]):
            parts[count:] = torch.split(_flat(grad).sum(0), ctx.sizes)
        asked = [part if is_wanted else None for part, is_wanted in zip(parts, wanted, strict=True)]
        return grad @ ctx.weight if wanted_x else None, None, None, None, *asked


def _flat(tensor: Tensor) -> Tensor:
    return tensor.flatten(0, -2)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """The parts beside each other in the last dimension: a view where they lie so already, a copy elsewhere."""
    first = parts[0]
    width = sum(part.shape[-1] for part in parts)
    at = first.data_ptr()
    for part in parts:
        if part.data_ptr() != at or part.stride() != first.stride():
            return torch.cat(tuple(parts), -1)
        at += part.shape[-1] * part.element_size()
    # strides as long as a whole row of all parts: these are views of one matrix, not tensors that happen to touch
    if first.ndim < 2 or first.stride(-1) != 1 or first.stride(-2) < width:
        return torch.cat(tuple(parts), -1)
    return first.as_strided((*first.shape[:-1], width), first.stride())
