"""What a layer does to each row by itself, by torch's own operations; in C++ it is `NativeRowwise`, on
a card `TritonRowwise`.

Knows: formulas and where they round.  Knows not: modules, autograd graphs, who chooses.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from ludus.kernels.rowwise import NormRule


class TorchRowwise:
    """torch's operations, on every device and type; rounds where the native ones round.

    Functions of rows and their gradients, without autograd; inputs may be strided, nothing is written into them.
    """

    def norm(self, x: Tensor, weight: Tensor, rule: NormRule) -> Tensor:
        """RMSNorm over the last dimension of x (…, D), by `rule`; weight: (D,)."""
        exact = x.float()
        normed = exact * torch.rsqrt(exact.pow(2).mean(-1, keepdim=True) + rule.eps)
        if rule.casts_first:
            normed = normed.to(x.dtype)
        # the product in fp32 rounds once, as that of two numbers of x's type does
        return (normed * (rule.offset + weight.float())).to(x.dtype)

    def norm_backward(
        self, grad: Tensor, x: Tensor, weight: Tensor, rule: NormRule, *, wants_weight: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Gradients of x, and of the weight in fp32 (None unless wanted)."""
        exact, slope = x.float(), grad.float()
        inverse = torch.rsqrt(exact.pow(2).mean(-1, keepdim=True) + rule.eps)
        normed, grad_normed = exact * inverse, slope * (rule.offset + weight.float())
        grad_x = (grad_normed - normed * (grad_normed * normed).mean(-1, keepdim=True)) * inverse
        if not wants_weight:
            return grad_x.to(x.dtype), None
        if rule.casts_first:
            normed = normed.to(x.dtype).float()
        return grad_x.to(x.dtype), (slope * normed).flatten(0, -2).sum(0)

    def gate(self, gate: Tensor, up: Tensor) -> Tensor:
        """silu(gate) * up, shape (…, F)."""
        return functional.silu(gate) * up

    def gate_backward(
        self, grad: Tensor, gate: Tensor, up: Tensor, *, wants_output: bool
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Gradients of gate and up as the halves of one matrix (…, 2F), and once more silu(gate) * up (if wanted)."""
        active = functional.silu(gate)
        grads = torch.cat((torch.ops.aten.silu_backward(grad * up, gate), grad * active), -1)
        width = gate.shape[-1]
        return grads[..., :width], grads[..., width:], active * up if wants_output else None

    def rotate(
        self, q: Tensor, k: Tensor, cosine: Tensor, sine: Tensor, *, back: bool = False
    ) -> tuple[Tensor, Tensor]:
        """q (1, H, S, Dh) and k (1, Hk, S, Dh) turned by the angles of their tokens, cosine and sine (1, S, Dh).

        x becomes x * cosine + (-x's second half, x's first half) * sine. back: times the transposed matrix instead,
        which is the gradient.
        """
        low, high = sine[:, None].chunk(2, -1)
        signed = torch.cat((high, -low) if back else (-low, high), -1)
        return _turned(q, cosine[:, None], signed), _turned(k, cosine[:, None], signed)


class Rowwise(Protocol):
    """What TorchRowwise documents."""

    def norm(self, x: Tensor, weight: Tensor, rule: NormRule) -> Tensor: ...

    def norm_backward(
        self, grad: Tensor, x: Tensor, weight: Tensor, rule: NormRule, *, wants_weight: bool
    ) -> tuple[Tensor, Tensor | None]: ...

    def gate(self, gate: Tensor, up: Tensor) -> Tensor: ...

    def gate_backward(
        self, grad: Tensor, gate: Tensor, up: Tensor, *, wants_output: bool
    ) -> tuple[Tensor, Tensor, Tensor | None]: ...

    def rotate(
        self, q: Tensor, k: Tensor, cosine: Tensor, sine: Tensor, *, back: bool = False
    ) -> tuple[Tensor, Tensor]: ...


def _turned(x: Tensor, cosine: Tensor, signed_sine: Tensor) -> Tensor:
    return x * cosine + x.roll(x.shape[-1] // 2, -1) * signed_sine
