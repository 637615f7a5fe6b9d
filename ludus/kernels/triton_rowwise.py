"""Row-wise operations of decoder layers (norms, gated activations, rotary positions) in Triton, for CUDA cards.

Knows: rows on a card.  Knows not: autograd, modules.
Invariant: a row's bits depend on that row alone; only the gradient of a weight is a sum over rows.

With torch's operations a norm takes eight kernels and rotary positions ten, each of which takes longer to launch than
to run; here each is one kernel. Values are rounded at the same places as with torch's operations.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# A kernel's arguments have types of Triton's own: pointers, numbers, constants that it is compiled for.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ludus.kernels.library import dense_last
from ludus.kernels.rowwise import NormRule, even_rows, row_strides

_BLOCK = 1024  # values of a gate that one program computes
_ROWS = 32  # rows of a norm over which one program sums the weight's gradient


@triton.jit
def norm_rows(
    x, weight, out, x_stride, num_inner, inner_stride, eps, offset,
    D: tl.constexpr, D_PADDED: tl.constexpr, CASTS_FIRST: tl.constexpr,
):  # fmt: skip
    """RMSNorm of one row. Row i begins at (i // num_inner) * x_stride + (i % num_inner) * inner_stride."""
    row = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, D_PADDED)
    inside = d < D
    at = x + row // num_inner * x_stride + row % num_inner * inner_stride + d
    exact = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    normed = exact * tl.rsqrt(tl.sum(exact * exact, 0) / D + eps)
    kind = out.dtype.element_ty
    if CASTS_FIRST:
        normed = normed.to(kind).to(tl.float32)
    factor = offset + tl.load(weight + d, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * D + d, (normed * factor).to(kind), mask=inside)


@triton.jit
def norm_rows_backward(
    grad, x, weight, grad_x, parts, grad_stride, x_stride, num_inner, grad_inner_stride, inner_stride, num_rows,
    eps, offset, D: tl.constexpr, D_PADDED: tl.constexpr, CASTS_FIRST: tl.constexpr, ROWS: tl.constexpr,
    WANTS_WEIGHT: tl.constexpr,
):  # fmt: skip
    """Gradients of ROWS rows, and their contribution to the weight's gradient."""
    first = tl.program_id(0).to(tl.int64) * ROWS
    d = tl.arange(0, D_PADDED)
    inside = d < D
    factor = offset + tl.load(weight + d, mask=inside, other=0.0).to(tl.float32)
    total = tl.zeros((D_PADDED,), tl.float32)
    for number in range(ROWS):
        row = first + number
        there = inside & (row + tl.zeros((D_PADDED,), tl.int64) < num_rows)
        outer, inner = row // num_inner, row % num_inner
        exact = tl.load(x + outer * x_stride + inner * inner_stride + d, mask=there, other=0.0).to(tl.float32)
        slope = tl.load(grad + outer * grad_stride + inner * grad_inner_stride + d, mask=there, other=0.0)
        slope = slope.to(tl.float32)
        inverse = tl.rsqrt(tl.sum(exact * exact, 0) / D + eps)
        normed = exact * inverse
        grad_normed = slope * factor
        mean = tl.sum(grad_normed * normed, 0) / D
        kind = grad_x.dtype.element_ty
        tl.store(grad_x + row * D + d, ((grad_normed - normed * mean) * inverse).to(kind), mask=there)
        if WANTS_WEIGHT:
            if CASTS_FIRST:
                normed = normed.to(kind).to(tl.float32)
            total += slope * normed
    if WANTS_WEIGHT:
        tl.store(parts + tl.program_id(0).to(tl.int64) * D + d, total, mask=inside)


@triton.jit
def gate_rows(gate, up, out, gate_stride, up_stride, F, BLOCK: tl.constexpr):
    """silu(gate) * up. Grid: rows, blocks of a row."""
    row = tl.program_id(0).to(tl.int64)
    f = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = f < F
    kind = out.dtype.element_ty
    exact = tl.load(gate + row * gate_stride + f, mask=inside, other=0.0).to(tl.float32)
    active = (exact * tl.sigmoid(exact)).to(kind).to(tl.float32)
    product = active * tl.load(up + row * up_stride + f, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * F + f, product.to(kind), mask=inside)


@triton.jit
def gate_rows_backward(
    grad, gate, up, grads, output, gate_stride, up_stride, F, BLOCK: tl.constexpr, WANTS_OUTPUT: tl.constexpr
):
    """Gradients of gate and up in one row, and the forward result again if WANTS_OUTPUT."""
    row = tl.program_id(0).to(tl.int64)
    f = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = f < F
    kind = grads.dtype.element_ty
    slope = tl.load(grad + row * F + f, mask=inside, other=0.0).to(tl.float32)
    exact = tl.load(gate + row * gate_stride + f, mask=inside, other=0.0).to(tl.float32)
    other = tl.load(up + row * up_stride + f, mask=inside, other=0.0).to(tl.float32)
    share = tl.sigmoid(exact)
    active = (exact * share).to(kind).to(tl.float32)
    by_active = (slope * other).to(kind).to(tl.float32)
    tl.store(grads + row * 2 * F + f, (by_active * share * (1.0 + exact * (1.0 - share))).to(kind), mask=inside)
    tl.store(grads + row * 2 * F + F + f, (slope * active).to(kind), mask=inside)
    if WANTS_OUTPUT:
        tl.store(output + row * F + f, (active * other).to(kind), mask=inside)


@triton.jit
def rotate_rows(
    q, k, cosine, sine, out, q_head, q_row, k_head, k_row, num_heads,
    DIM: tl.constexpr, HALF_PADDED: tl.constexpr, BACK: tl.constexpr,
):  # fmt: skip
    """Rotate one token of one head, of queries or keys. Grid: tokens, query heads followed by key heads."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    half = tl.arange(0, HALF_PADDED)
    inside = half < DIM // 2
    if head < num_heads:
        at = q + head * q_head + row * q_row + half
    else:
        at = k + (head - num_heads) * k_head + row * k_row + half
    kind = out.dtype.element_ty
    low = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    high = tl.load(at + DIM // 2, mask=inside, other=0.0).to(tl.float32)
    angles = row * DIM + half
    cos_low = tl.load(cosine + angles, mask=inside, other=0.0).to(tl.float32)
    cos_high = tl.load(cosine + angles + DIM // 2, mask=inside, other=0.0).to(tl.float32)
    sin_low = tl.load(sine + angles, mask=inside, other=0.0).to(tl.float32)
    sin_high = tl.load(sine + angles + DIM // 2, mask=inside, other=0.0).to(tl.float32)
    if BACK:
        from_high, from_low = sin_high, -sin_low
    else:
        from_high, from_low = -sin_low, sin_high
    place = out + (row * tl.num_programs(1) + head) * DIM + half
    new_low = (low * cos_low).to(kind).to(tl.float32) + (high * from_high).to(kind).to(tl.float32)
    new_high = (high * cos_high).to(kind).to(tl.float32) + (low * from_low).to(kind).to(tl.float32)
    tl.store(place, new_low.to(kind), mask=inside)
    tl.store(place + DIM // 2, new_high.to(kind), mask=inside)


class TritonRowwise:
    """The same as TorchRowwise (ludus/models/rowwise.py), which documents it, on CUDA cards."""

    def norm(self, x: Tensor, weight: Tensor, rule: NormRule) -> Tensor:
        x, num_rows, rows = row_strides(x)
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        width = x.shape[-1]
        if num_rows:
            norm_rows[(num_rows,)](
                x, weight, out, rows.outer, rows.num_inner, rows.inner, rule.eps, rule.offset,
                D=width, D_PADDED=_padded(width), CASTS_FIRST=rule.casts_first,
            )  # fmt: skip
        return out

    def norm_backward(
        self, grad: Tensor, x: Tensor, weight: Tensor, rule: NormRule, *, wants_weight: bool
    ) -> tuple[Tensor, Tensor | None]:
        grad = grad.contiguous()
        x, num_rows, rows = row_strides(x)
        width, num_parts = x.shape[-1], -(-num_rows // _ROWS)
        grad_x = torch.empty_like(x, memory_format=torch.contiguous_format)
        parts = torch.empty(num_parts, width, dtype=torch.float32, device=x.device) if wants_weight else None
        if num_rows:
            norm_rows_backward[(num_parts,)](
                grad, x, weight, grad_x, grad_x if parts is None else parts, rows.num_inner * width,
                rows.outer, rows.num_inner, width, rows.inner, num_rows, rule.eps, rule.offset,
                D=width, D_PADDED=_padded(width), CASTS_FIRST=rule.casts_first, ROWS=_ROWS, WANTS_WEIGHT=wants_weight,
            )  # fmt: skip
        return grad_x, None if parts is None else parts.sum(0)

    def gate(self, gate: Tensor, up: Tensor) -> Tensor:
        (gate, num_rows, gate_stride), (up, _, up_stride) = even_rows(gate), even_rows(up)
        out = torch.empty_like(gate, memory_format=torch.contiguous_format)
        width = gate.shape[-1]
        if num_rows:
            gate_rows[(num_rows, -(-width // _BLOCK))](gate, up, out, gate_stride, up_stride, width, BLOCK=_BLOCK)
        return out

    def gate_backward(
        self, grad: Tensor, gate: Tensor, up: Tensor, *, wants_output: bool
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        grad = grad.contiguous()
        (gate, num_rows, gate_stride), (up, _, up_stride) = even_rows(gate), even_rows(up)
        width = gate.shape[-1]
        grads = gate.new_empty(*gate.shape[:-1], 2 * width)
        output = torch.empty_like(gate, memory_format=torch.contiguous_format) if wants_output else None
        if num_rows:
            gate_rows_backward[(num_rows, -(-width // _BLOCK))](
                grad, gate, up, grads, grads if output is None else output, gate_stride, up_stride, width,
                BLOCK=_BLOCK, WANTS_OUTPUT=wants_output,
            )  # fmt: skip
        return grads[..., :width], grads[..., width:], output

    def rotate(
        self, q: Tensor, k: Tensor, cosine: Tensor, sine: Tensor, *, back: bool = False
    ) -> tuple[Tensor, Tensor]:
        q, k, cosine, sine = dense_last(q), dense_last(k), cosine.contiguous(), sine.contiguous()
        _, num_heads, num_rows, dim = q.shape
        assert q.shape[0] == k.shape[0] == 1 and dim % 2 == 0, f"one row of even heads, not {tuple(q.shape)}"
        total = num_heads + k.shape[1]
        out = q.new_empty(num_rows, total, dim)
        if num_rows:
            rotate_rows[(num_rows, total)](
                q, k, cosine, sine, out, q.stride(1), q.stride(2), k.stride(1), k.stride(2), num_heads,
                DIM=dim, HALF_PADDED=_padded(dim // 2), BACK=back,
            )  # fmt: skip
        turned = out.transpose(0, 1)[None]
        return turned[:, :num_heads], turned[:, num_heads:]


def _padded(width: int) -> int:
    return max(16, 1 << (width - 1).bit_length())
