"""The native linear layer: right against fp64, and a row keeps its bits in any company."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ludus.errors import BackendError, InternalError
from ludus.kernels import linear as module
from ludus.kernels.linear import linear, unsupported_reason

DTYPES = [torch.float32, torch.bfloat16]
# Widths around the step of 16 bytes and the line of 64, one narrower than a step, and a real one.
WIDTHS = [1, 7, 8, 33, 72, 576]
# Columns around the tiles of 4, 8, 12 and 16, and four of the last.
COLUMNS = [1, 3, 4, 11, 12, 50, 64, 65]
# Rows around the groups of 4, the blocks of 24, and tiles of 16.
ROWS = [1, 2, 4, 5, 8, 9, 13, 17, 24, 25, 33, 64]


@pytest.fixture
def threads() -> Iterator[None]:
    """Lets a test set the number of threads."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def draw(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def close(got: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    """Within one rounding of the result, and in fp32 within what its sum may lose."""
    exact = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    rounding = torch.finfo(x.dtype).eps / 2
    sum_error = (x.double().abs() @ weight.double().abs().T) * torch.finfo(torch.float32).eps * 4
    return bool(((got.double() - exact).abs() <= exact.abs() * rounding * 1.01 + sum_error).all())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_it_is_the_product_rounded_once(dtype: torch.dtype, width: int) -> None:
    """Every combination of whole and partial tiles agrees with fp64, with and without a bias."""
    for num_columns in COLUMNS:
        weight, bias = draw(num_columns, width, dtype=dtype), draw(num_columns, dtype=dtype, seed=1)
        for num_rows in ROWS:
            x = draw(num_rows, width, dtype=dtype, seed=2)
            assert close(linear(x, weight), x, weight), (num_rows, num_columns)
            assert close(linear(x, weight, bias), x, weight, bias), (num_rows, num_columns)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [7, 72])
def test_what_is_there_is_a_part_of_the_sum(dtype: torch.dtype, width: int) -> None:
    """Added before the one rounding, with and without a bias, in dense rows of a wider matrix too."""
    for num_columns in COLUMNS:
        weight, bias = draw(num_columns, width, dtype=dtype), draw(num_columns, dtype=dtype, seed=1)
        for num_rows in ROWS:
            x, there = draw(num_rows, width, dtype=dtype, seed=2), draw(num_rows, num_columns + 3, dtype=dtype, seed=3)
            for own in (None, bias):
                added = there.clone()[:, :num_columns]
                result = linear(x, weight, own, added, adds=True)
                exact = there[:, :num_columns].double() + (0 if own is None else own.double())
                assert result is added and close(result, x, weight, exact), (num_rows, num_columns)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_keeps_its_bits_in_any_company(dtype: torch.dtype, threads: None) -> None:
    """Rows alone, in slices, reversed, and under one to three threads: always the same bits."""
    x, weight = draw(75, 72, dtype=dtype), draw(50, 72, dtype=dtype, seed=1)
    expected = linear(x, weight)
    for num_rows in ROWS:
        for first in (0, 3, 75 - num_rows):
            assert torch.equal(linear(x[first : first + num_rows], weight), expected[first : first + num_rows])
    for num_threads in (1, 2, 3):
        torch.set_num_threads(num_threads)
        assert torch.equal(linear(x, weight), expected)
        assert torch.equal(linear(x.flip(0), weight).flip(0), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_more_rows_than_one_packing_holds(dtype: torch.dtype) -> None:
    """Rows beyond the second-level cache are taken in several rounds, with the same bits."""
    x, weight = draw(700, 640, dtype=dtype), draw(5, 640, dtype=dtype, seed=1)
    whole = linear(x, weight)
    assert close(whole, x, weight)
    assert torch.equal(linear(x[690:], weight), whole[690:])


@pytest.mark.parametrize("dtype", DTYPES)
def test_strided_rows_are_read_and_written_in_place(dtype: torch.dtype) -> None:
    """x, weight and out may be slices of wider matrices; nothing beside them is touched."""
    x, weight = draw(9, 40, dtype=dtype)[:, 3:23], draw(26, 64, dtype=dtype, seed=1)[::2, 9:29]
    out = torch.full((9, 30), 7.0, dtype=dtype)
    assert linear(x, weight, out=out[:, 4:17]).data_ptr() == out[:, 4:17].data_ptr()
    assert torch.equal(out[:, 4:17], linear(x.contiguous(), weight.contiguous()))
    assert bool((out[:, :4] == 7).all()) and bool((out[:, 17:] == 7).all())


def test_leading_dimensions_are_kept() -> None:
    """A vector, a batch of sequences, a transposed batch and an empty one keep their shape."""
    weight = draw(6, 16, dtype=torch.float32)
    for x in (draw(16, dtype=torch.float32), draw(2, 3, 16, dtype=torch.float32)):
        assert linear(x, weight).shape == (*x.shape[:-1], 6)
    turned = draw(3, 2, 16, dtype=torch.float32).transpose(0, 1)
    assert torch.equal(linear(turned, weight), linear(turned.contiguous(), weight))
    assert linear(torch.empty(0, 16), weight).shape == (0, 6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_dimension_of_one_may_have_any_stride(dtype: torch.dtype) -> None:
    """A transposed batch of one is contiguous, and its rows are no further apart for it."""
    base, weight = draw(1, 5, 40, dtype=dtype), draw(6, 40, dtype=dtype, seed=1)
    x, out = base.transpose(0, 1), torch.empty(1, 5, 6, dtype=dtype).transpose(0, 1)
    assert x.is_contiguous() and x.stride(-2) == 200
    assert torch.equal(linear(x, weight), linear(base[0], weight)[:, None])
    assert torch.equal(linear(x, weight, out=out), linear(base[0], weight)[:, None])


def test_what_is_not_a_number_stays_in_its_row() -> None:
    """A NaN or an infinity in one row of x, or beside x, reaches no other row."""
    wide = draw(6, 24, dtype=torch.bfloat16)
    wide[:, 21:] = torch.nan
    wide[2, 5] = torch.inf
    weight = draw(7, 21, dtype=torch.bfloat16, seed=1)
    result = linear(wide[:, :21], weight)
    assert result[2].isinf().all() and result[[0, 1, 3, 4, 5]].isfinite().all()


def test_refusals_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """A weight of another type, shape or layout, or on another device, is refused with the reason."""
    monkeypatch.setattr(module, "_times_as_long", lambda *_: 1.0)  # a build may be slow
    assert unsupported_reason(torch.zeros(4, 4)) is None
    assert "fp32 and bf16" in str(unsupported_reason(torch.zeros(4, 4, dtype=torch.float64)))
    assert "dense" in str(unsupported_reason(torch.zeros(4, 6).T))
    assert "meta" in str(unsupported_reason(torch.zeros(4, 4, device="meta")))


def test_without_a_library_the_refusal_carries_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """No compiler: the refusal is the message that names those that would do."""

    def fails() -> None:
        raise BackendError("no C++ compiler found")

    monkeypatch.setattr(module, "_function", fails)
    assert unsupported_reason(torch.zeros(4, 4)) == "no C++ compiler found"


def test_tensors_that_do_not_fit_are_named() -> None:
    """Another width or type, a short bias, a result of the wrong shape, wanted gradients: the error says which."""
    x, weight = torch.zeros(2, 8), torch.zeros(3, 8)
    with pytest.raises(InternalError, match="x must be rows of 8"):
        linear(torch.zeros(2, 7), weight)
    with pytest.raises(InternalError, match="x must be"):
        linear(x.bfloat16(), weight)
    with pytest.raises(InternalError, match="bias must be 3"):
        linear(x, weight, torch.zeros(4))
    with pytest.raises(InternalError, match="out must be"):
        linear(x, weight, out=torch.zeros(3, 2))
    with pytest.raises(InternalError, match="no gradients"):
        linear(x, weight.clone().requires_grad_())


def test_a_product_that_is_much_slower_than_torchs_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is timed once for a build and what torch may use; a later process reads it, and says why torch multiplies."""
    measured = [{"ratio": 1.0}, {"ratio": 5.0}]
    monkeypatch.setattr(module, "user_cache", lambda: tmp_path)
    monkeypatch.setattr(module, "_measure", lambda _: measured.pop())
    weight = torch.zeros(4, 8)
    try:
        for _ in range(2):
            module._times_as_long.cache_clear()
            assert module.unsupported_reason(weight) == "it takes 5.0 times as long as torch's product here"
        module._times_as_long.cache_clear()
        (kept,) = (tmp_path / "machine").iterdir()
        kept.write_text('{"ratio": 1.2}')
        assert module.unsupported_reason(weight) is None
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "SSE41")  # torch is slower than what was measured
        module._times_as_long.cache_clear()
        assert module.unsupported_reason(weight) is None and not measured
    finally:
        module._times_as_long.cache_clear()


def test_it_is_timed_against_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ratio is of times taken in turn; what seems too slow is timed for longer: others may have been at work."""
    assert module._measure(torch.float32)["ratio"] > 0
    seconds, asked = iter([9.0] * 24 + [1.5] * 300), []

    def took(multiply: object, *_: object) -> float:
        asked.append(multiply)
        return next(seconds) if multiply is module.linear else 1.0

    monkeypatch.setattr(module, "_seconds", took)
    assert module._measure(torch.float32) == {"ratio": 1.5}
    assert asked[::2] == [module.linear] * (len(asked) // 2) and module.linear not in asked[1::2]
