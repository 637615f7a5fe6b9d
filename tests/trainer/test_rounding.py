import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ludus.kernels.build import build_library
from ludus.kernels.rounding import NativeRounding
from ludus.trainer.rounding import Rounding, mixed_bits, round_up_above, round_up_above_half

CPU = torch.device("cpu")
BITS = st.integers(0, 2**32 - 1)


def dithered(master: Tensor, *, seed: int = 0, name: str = "w", first: int = 0) -> Tensor:
    into = torch.empty_like(master, dtype=torch.bfloat16)
    Rounding("dither", seed, CPU).copy(master, into, name=name, first=first)
    return into


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def scrambled(place: int, key: int) -> int:
    """lowbias32 as its author wrote it, on whole numbers."""
    x = (place ^ key) & 0xFFFFFFFF
    x ^= x >> 16
    x = x * 0x7FEB352D & 0xFFFFFFFF
    x ^= x >> 15
    x = x * 0x846CA68B & 0xFFFFFFFF
    return x ^ x >> 16


@given(place=BITS, key=BITS)
def test_bits_are_those_of_the_published_function(place: int, key: int) -> None:
    """Every place and key give the 32 bits that whole numbers give."""
    (bits,) = mixed_bits(1, place, key, CPU).tolist()
    assert bits & 0xFFFFFFFF == scrambled(place, key)


@given(pattern=BITS, place=BITS, key=BITS)
def test_native_and_torch_agree_on_every_number(pattern: int, place: int, key: int) -> None:
    """Whatever the 32 bits of a number are, infinities and NaN among them, both round it to the same bits."""
    number = torch.tensor([pattern - (pattern >> 31 << 32)], dtype=torch.int32).view(torch.float32)
    ours = torch.empty(1, dtype=torch.bfloat16)
    NativeRounding(build_library("rounding"))(number, ours, first=place, key=key)
    theirs = round_up_above(number, mixed_bits(1, place, key, CPU)).bfloat16()
    assert torch.equal(ours.view(torch.int16), theirs.view(torch.int16)) or (
        ours.isnan().all() and number.isnan().all()
    )


@pytest.mark.parametrize("count", [1, 15, 16, 17, 4096, 4097, 100_003])
def test_native_and_torch_agree_on_every_length(count: int) -> None:
    """Blocks, vectors and what is left over give the bits that torch's operations give."""
    master, ours = draw(count), torch.empty(count, dtype=torch.bfloat16)
    NativeRounding(build_library("rounding"))(master, ours, first=5, key=77)
    assert torch.equal(ours, round_up_above(master, mixed_bits(count, 5, 77, CPU)).bfloat16())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_some_columns_are_rounded_as_in_the_whole(dtype: torch.dtype) -> None:
    """By native code and by torch's operations, which float16 has alone."""
    rounding, whole = Rounding("dither", 3, CPU), draw(9, 12)
    expected, got = torch.empty_like(whole, dtype=dtype), torch.empty(4, 5, dtype=dtype)
    rounding.copy(whole, expected, name="w")
    rounding.copy(whole[2:6, 4:9].contiguous(), got, name="w", first=2 * 12 + 4, stride=12)
    assert torch.equal(got, expected[2:6, 4:9])


def test_published_weights_are_the_masters_on_average() -> None:
    """A change of a hundredth of bf16's spacing moves the mean of many weights by as much; to the nearest, by none."""
    master = torch.full((512, 512), 0.1).bfloat16().float()
    spacing = 2.0**-11
    moved = master + spacing / 100
    assert float(dithered(moved).double().mean() - master.double().mean()) == pytest.approx(spacing / 100, rel=0.05)
    nearest = torch.empty_like(moved, dtype=torch.bfloat16)
    Rounding("nearest", 0, CPU).copy(moved, nearest, name="w")
    assert torch.equal(nearest.float(), master)


def test_weights_on_the_grid_stay_and_none_flickers() -> None:
    """A master that bf16 holds is published as it is, and one that rises for good never falls in between."""
    on_grid = draw(64, 64).bfloat16().float()
    assert torch.equal(dithered(on_grid).float(), on_grid)
    before = dithered(on_grid)
    for step in range(1, 20):
        now = dithered(on_grid + step * 2e-4)
        assert (now >= before).all()
        before = now


@given(pattern=st.integers(0, 2**15 - 1), threshold=BITS, sign=st.sampled_from([1.0, -1.0]), share=st.floats(0, 0.999))
def test_fp16_is_rounded_to_a_neighbour(pattern: int, threshold: int, sign: float, share: float) -> None:
    """Between two neighbouring numbers of fp16 it is one of them, on either it stays, and what is not finite stays."""
    low = torch.tensor([pattern], dtype=torch.int16).view(torch.float16)
    high = torch.tensor([pattern + 1 if pattern < 2**15 - 1 else pattern], dtype=torch.int16).view(torch.float16)
    exact = sign * (low.float() + (high.float() - low.float()) * share if high.isfinite() else low.float())
    bits = torch.tensor([threshold - (threshold >> 31 << 32)], dtype=torch.int32)
    got = round_up_above_half(exact, bits)
    if not low.isfinite():
        assert torch.equal(got, exact) or got.isnan().all()
        return
    assert float(got.abs()) in (float(low), float(high))
    if share == 0:
        assert torch.equal(got, exact)


@pytest.mark.parametrize("value", [0.1, 3e-5, 40.0])
def test_fp16_is_right_on_average(value: float) -> None:
    """A hundredth of fp16's spacing moves the mean of many weights by as much, where numbers are coarse too."""
    on_grid = torch.full((512, 512), value).half().float()
    bits = torch.tensor([value]).half().view(torch.int16)
    spacing = float((bits + 1).view(torch.float16).float() - bits.view(torch.float16).float())
    got = torch.empty_like(on_grid, dtype=torch.float16)
    Rounding("dither", 0, CPU).copy(on_grid + spacing / 100, got, name="w")
    assert float(got.double().mean() - on_grid.double().mean()) == pytest.approx(spacing / 100, rel=0.06)


def test_products_with_published_weights_are_those_of_the_masters() -> None:
    """The error of a matrix product has no direction: over many rows it is far smaller than the change itself."""
    master, inputs = draw(2048, 256).bfloat16().float(), draw(64, 256, seed=1)
    change = 1e-4 * draw(2048, 256, seed=2).sign()
    exact = inputs @ change.T
    seen = inputs @ (dithered(master + change).float() - master).T
    slope = float((seen * exact).sum() / exact.pow(2).sum())
    assert slope == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("cut", [1, 7, 30])
def test_rows_on_several_ranks_are_rounded_as_the_whole(cut: int) -> None:
    """Each part of a weight, told where it begins, has the bits it has in the whole."""
    master = draw(40, 33)
    parts = [dithered(master[:cut]), dithered(master[cut:], first=cut * 33)]
    assert torch.equal(torch.cat(parts), dithered(master))


def test_seeds_and_names_have_thresholds_of_their_own() -> None:
    """Equal numbers in two weights, or in two runs, are not rounded alike; the same ones always are."""
    master = draw(1000)
    assert torch.equal(dithered(master), dithered(master))
    for other in (dithered(master, seed=1), dithered(master, name="v"), dithered(master, first=1)):
        assert 0.2 < float((other != dithered(master)).float().mean()) < 0.5


def test_a_weight_is_rounded_in_parts_as_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a card, which is brought a part of a master at a time: equal bits, also into memory with gaps."""
    master = draw(40, 70)
    whole = dithered(master, seed=3, first=11)
    monkeypatch.setattr("ludus.trainer.rounding._CHUNK", 64)
    for into in (torch.empty(40, 70, dtype=torch.bfloat16), torch.empty(40, 140, dtype=torch.bfloat16)[:, ::2]):
        Rounding("dither", 3, torch.device("cuda")).copy(master, into, name="w", first=11)
        assert torch.equal(into, whole)
