"""Less memory between forward and backward pass: what is cheap to compute is computed again instead of kept.

Knows: the parts that decoders are made of.  Knows not: losses, rows.
Invariant: the same modules compute the same values; only what autograd keeps of them changes, and sampling, which
runs without autograd, does not change at all.

Of a norm autograd would keep three copies in fp32, of a gated MLP four products of its width. Here a norm keeps its
input and a gated MLP its two projections: of a decoder with tied embeddings about a third of the memory is left.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ludus.model.load import LoadedModel

# Rows of a norm worked on at a time: their fp32 copies stay in the processor's second-level cache.
_TILE_ROWS = 256
_GATED_PARTS = ("gate_proj", "up_proj", "down_proj", "act_fn")


def keep_less(model: LoadedModel) -> None:
    """From now on norms and gated MLPs of the model's layers keep only their inputs for the backward pass."""
    for layer in model.layers:
        for part in layer.modules():
            if type(part).__name__.endswith("RMSNorm"):
                part.forward = _LeanNorm(part, part.forward)
            elif all(hasattr(part, name) for name in _GATED_PARTS):
                part.forward = _LeanGate(part, part.forward)


def recompute_layers(model: LoadedModel) -> None:
    """From now on every layer keeps only its input for the backward pass and runs again there."""
    for layer in model.layers:
        layer.forward = _Recomputed(layer.forward)


@dataclass(frozen=True, slots=True)
class _Recomputed:
    forward: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self.forward(*args, **kwargs)
        return checkpoint(self.forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)


@dataclass(frozen=True, slots=True)
class _LeanGate:
    """down(act(gate(x)) * up(x)); the recomputation stops before the last product, whose result nobody needs again."""

    part: Any
    forward: Callable[[Tensor], Tensor]

    def __call__(self, hidden: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return self.forward(hidden)
        gate, up = self.part.gate_proj(hidden), self.part.up_proj(hidden)
        output: Tensor = checkpoint(self._tail, gate, up, use_reentrant=False, preserve_rng_state=False)
        return output

    def _tail(self, gate: Tensor, up: Tensor) -> Tensor:
        output: Tensor = self.part.down_proj(self.part.act_fn(gate) * up)
        return output


@dataclass(frozen=True, slots=True)
class _LeanNorm:
    part: nn.Module
    forward: Callable[[Tensor], Tensor]

    def __call__(self, hidden: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return self.forward(hidden)
        trained = [parameter for parameter in self.part.parameters() if parameter.requires_grad]
        output: Tensor = _RowwiseFunction.apply(hidden, self.forward, *trained)  # type: ignore[no-untyped-call]
        return output


class _RowwiseFunction(torch.autograd.Function):
    """A function of each row by itself, run on tiles of rows; keeps its input alone."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, function: Callable[[Tensor], Tensor], *trained: Tensor) -> Tensor:
        ctx.save_for_backward(hidden, *trained)
        ctx.function = function
        rows = hidden.reshape(-1, hidden.shape[-1])
        output = torch.empty_like(rows)
        for start in range(0, len(rows), _TILE_ROWS):
            tile = slice(start, start + _TILE_ROWS)
            output[tile] = function(rows[tile])
        return output.view(hidden.shape)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        hidden, *trained = ctx.saved_tensors
        rows, grads = hidden.reshape(-1, hidden.shape[-1]), grad_output.reshape(-1, hidden.shape[-1])
        grad_rows = torch.empty_like(rows)
        grad_trained = [torch.zeros_like(parameter, dtype=torch.float32) for parameter in trained]
        for start in range(0, len(rows), _TILE_ROWS):
            tile = slice(start, start + _TILE_ROWS)
            with torch.enable_grad():
                inputs = rows[tile].detach().requires_grad_()
                outputs = ctx.function(inputs)
            grad_inputs, *parts = torch.autograd.grad(outputs, (inputs, *trained), grads[tile])
            grad_rows[tile] = grad_inputs
            for total, part in zip(grad_trained, parts, strict=True):
                total += part
        own = [total.to(parameter.dtype) for total, parameter in zip(grad_trained, trained, strict=True)]
        return grad_rows.view(hidden.shape), None, *own
