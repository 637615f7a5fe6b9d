"""The row-wise kernels against torch's autograd."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from ludus.kernels.build import build_library
from ludus.kernels.rowwise import NativeRowwise, NormRule

OPS = NativeRowwise(build_library("rowwise"))
# relative to the largest value: fp32 sums in another order; bf16 one rounding more or less
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 1.6e-2}
DTYPES = st.sampled_from((torch.float32, torch.bfloat16))
ROWS, WIDTHS = st.integers(1, 150), st.integers(1, 80)


def draw(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def exact(tensor: Tensor) -> Tensor:
    """In fp64, ready for a gradient."""
    return tensor.double().requires_grad_()


def assert_near(
    got: Tensor | None, expected: Tensor | None, dtype: torch.dtype, *, scale: Tensor | None = None
) -> None:
    """Within the type's rounding of the largest value, or of the largest of `scale` where terms cancel."""
    assert got is not None and expected is not None and got.shape == expected.shape
    largest = float((expected if scale is None else scale).abs().max())
    assert float((got.double() - expected.double()).abs().max()) <= TOLERANCE[dtype] * largest


def exact_norm(x: Tensor, weight: Tensor, rule: NormRule) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + rule.eps) * (rule.offset + weight)


@settings(max_examples=40, deadline=None)
@given(num_rows=ROWS, width=WIDTHS, dtype=DTYPES, offset=st.sampled_from((0.0, 1.0)), casts_first=st.booleans())
def test_norm_and_its_gradients(
    num_rows: int, width: int, dtype: torch.dtype, offset: float, casts_first: bool
) -> None:
    """Output and both gradients are those of the formula in fp64, at every width and number of rows."""
    rule = NormRule(1e-5, offset, casts_first)
    x, grad = draw(num_rows, width, dtype=dtype), draw(num_rows, width, dtype=dtype, seed=1)
    weight = draw(width, dtype=dtype, seed=2)
    x64, weight64 = exact(x), exact(weight)
    expected = exact_norm(x64, weight64, rule)
    expected.backward(grad.double())
    assert_near(OPS.norm(x, weight, rule), expected.detach(), dtype)
    grad_x, grad_weight = OPS.norm_backward(grad, x, weight, rule, wants_weight=True)
    inverse = torch.rsqrt(x.double().pow(2).mean(-1, keepdim=True) + rule.eps)
    assert_near(grad_x, x64.grad, dtype, scale=grad.double() * (offset + weight.double()) * inverse)
    assert_near(grad_weight, weight64.grad, dtype, scale=(grad.double() * x.double() * inverse).abs().sum(0))
    assert OPS.norm_backward(grad, x, weight, rule, wants_weight=False)[1] is None


@settings(max_examples=40, deadline=None)
@given(num_rows=ROWS, width=WIDTHS, dtype=DTYPES)
def test_gate_and_its_gradients(num_rows: int, width: int, dtype: torch.dtype) -> None:
    """silu(gate) * up from the halves of one matrix, and the gradients as halves of another."""
    both, grad = draw(num_rows, 2 * width, dtype=dtype), draw(num_rows, width, dtype=dtype, seed=1)
    gate, up = both[:, :width], both[:, width:]
    gate64, up64 = exact(gate), exact(up)
    expected = functional.silu(gate64) * up64
    expected.backward(grad.double())
    assert_near(OPS.gate(gate, up), expected.detach(), dtype)
    grad_gate, grad_up, output = OPS.gate_backward(grad, gate, up, wants_output=True)
    assert_near(grad_gate, gate64.grad, dtype)
    assert_near(grad_up, up64.grad, dtype)
    assert torch.equal(output, OPS.gate(gate, up))
    assert grad_up.data_ptr() == grad_gate.data_ptr() + width * grad_gate.element_size()


def exact_rotary(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return x * cosine + torch.cat((-x[..., half:], x[..., :half]), -1) * sine


@settings(max_examples=40, deadline=None)
@given(num_rows=ROWS, half=st.integers(1, 40), heads=st.integers(1, 5), key_heads=st.integers(1, 3), dtype=DTYPES)
def test_rotary_and_its_gradients(num_rows: int, half: int, heads: int, key_heads: int, dtype: torch.dtype) -> None:
    """Queries and keys as strided views of one projection; halves may turn by different angles."""
    dim = 2 * half
    both = draw(1, num_rows, (heads + key_heads) * dim, dtype=dtype).view(1, num_rows, -1, dim).transpose(1, 2)
    q, k = both[:, :heads], both[:, heads:]
    cosine, sine = draw(1, num_rows, dim, dtype=dtype, seed=1), draw(1, num_rows, dim, dtype=dtype, seed=2)
    grad_q, grad_k = draw(*q.shape, dtype=dtype, seed=3), draw(*k.shape, dtype=dtype, seed=4)
    q64, k64 = exact(q), exact(k)
    expected = [exact_rotary(x, cosine.double(), sine.double()) for x in (q64, k64)]
    torch.autograd.backward(expected, [grad_q.double(), grad_k.double()])
    largest_angle = cosine.abs().max() + sine.abs().max()
    for got, wanted, x in zip(OPS.rotate(q, k, cosine, sine), expected, (q, k), strict=True):
        assert_near(got, wanted.detach(), dtype, scale=x * largest_angle)
    back = OPS.rotate(grad_q, grad_k, cosine, sine, back=True)
    for got, wanted, grad in zip(back, (q64.grad, k64.grad), (grad_q, grad_k), strict=True):
        assert_near(got, wanted, dtype, scale=grad * largest_angle)


def test_bf16_is_rounded_where_torch_rounds() -> None:
    """The products and sums of rotary positions and of the gate have the bits of torch's own operations."""
    x, y = draw(64, 96, dtype=torch.bfloat16), draw(64, 96, dtype=torch.bfloat16, seed=1)
    q, k = (each.view(1, 64, 3, 32).transpose(1, 2) for each in (x, y))
    cosine, sine = (draw(1, 64, 32, dtype=torch.bfloat16, seed=seed) for seed in (2, 3))
    for got, source in zip(OPS.rotate(q, k, cosine, sine), (q, k), strict=True):
        assert torch.equal(got, exact_rotary(source, cosine[:, None], sine[:, None]))
    assert torch.equal(OPS.gate(x, y), functional.silu(x) * y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_has_the_same_bits_in_any_company(dtype: torch.dtype) -> None:
    """Alone, among others, at another place in memory or on other threads: the same bits."""
    rule = NormRule(1e-5, 0.0, True)
    x, weight = draw(300, 200, dtype=dtype), draw(200, dtype=dtype, seed=1)
    cosine, sine = draw(1, 300, 20, dtype=dtype, seed=2), draw(1, 300, 20, dtype=dtype, seed=3)

    def results(rows: slice) -> tuple[Tensor, ...]:
        own = x[rows].clone()
        heads = own.view(1, -1, 10, 20).transpose(1, 2)
        q, k = OPS.rotate(heads[:, :7], heads[:, 7:], cosine[:, rows], sine[:, rows])
        return (
            OPS.norm(own, weight, rule),
            OPS.gate(own[:, :77], own[:, 99:176]),
            q[0].transpose(0, 1),
            k[0].transpose(0, 1),
        )

    num_threads = torch.get_num_threads()
    together = results(slice(None))
    torch.set_num_threads(1)
    try:
        for rows in (slice(0, 1), slice(7, 20), slice(299, 300)):
            for alone, among in zip(results(rows), together, strict=True):
                assert torch.equal(alone, among[rows])
        backward = OPS.norm_backward(x, x, weight, rule, wants_weight=True)
        torch.set_num_threads(3)
        for one, three in zip(backward, OPS.norm_backward(x, x, weight, rule, wants_weight=True), strict=True):
            assert torch.equal(one, three)
    finally:
        torch.set_num_threads(num_threads)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3), (1, 2, 0, 3), (0, 1, 3, 2)])
def test_norm_takes_rows_however_they_lie(order: tuple[int, ...]) -> None:
    """Rows in any strides give what contiguous ones give: output and gradients."""
    rule = NormRule(1e-6, 1.0, False)
    x = draw(3, 5, 24, 24, dtype=torch.float32)[..., 4:20, 4:20].permute(order)
    weight, grad = draw(16, dtype=torch.float32), draw(*x.shape, dtype=torch.float32, seed=1)
    assert torch.equal(OPS.norm(x, weight, rule), OPS.norm(x.contiguous(), weight, rule))
    strided = OPS.norm_backward(grad.transpose(0, 1).contiguous().transpose(0, 1), x, weight, rule, wants_weight=True)
    dense = OPS.norm_backward(grad, x.contiguous(), weight, rule, wants_weight=True)
    assert all(torch.equal(a, b) for a, b in zip(strided, dense, strict=True))


def test_values_beyond_the_ordinary_stay_what_they_are() -> None:
    """A NaN stays one, huge gates neither overflow nor vanish wrongly, and no row at all is no error."""
    gate = torch.tensor([[float("nan"), 1e30, -1e30, 0.0, -100.0, 100.0]])
    got = OPS.gate(gate, torch.ones_like(gate))[0]
    assert got[0].isnan() and got[1] == 1e30 and got[3] == 0 and got[5] == 100 and abs(float(got[4])) < 1e-30
    assert OPS.gate(gate.bfloat16(), torch.ones_like(gate).bfloat16())[0, 0].isnan()
    empty = torch.empty(0, 8)
    assert OPS.norm(empty, torch.ones(8), NormRule(1e-6, 0.0, True)).shape == (0, 8)
