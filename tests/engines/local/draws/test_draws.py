"""Draws against the distribution they are drawn from."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from ludus.engines.local.draws.base import SamplingRequest, capped, uniform
from ludus.engines.local.draws.eager import EagerSampling, inverse_cdf, kept_thresholds
from ludus.engines.local.draws.native import NativeSampling
from ludus.engines.local.draws.select import choose_sampling_kernel
from ludus.engines.sequence import SampledToken
from ludus.errors import BackendError
from ludus.kernels.build import build_library, compile_source, find_compiler, source_path
from ludus.types import MAX_KEPT_IDS, Sampling

VOCAB = 300
SOME = "start: /.*/"
"""Draws read of a grammar that there is one; what it allows stands in the request."""
DrawRows = Callable[..., list[SampledToken]]


@pytest.fixture(scope="session")
def portable_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The native kernel as a processor without special instructions, and a compiler without OpenMP, gets it."""
    library = tmp_path_factory.mktemp("portable") / "sampling.so"
    compile_source(find_compiler(), source_path("sampling"), library, [()])
    return library


@pytest.fixture(params=["eager", "native", "portable"])
def draw(request: pytest.FixtureRequest) -> DrawRows:
    """Draws from given logits with one of the kernels."""

    def draw_rows(
        logits_NV: torch.Tensor, requests: list[SamplingRequest], softcap: float | None = None
    ) -> list[SampledToken]:
        if request.param == "eager":
            kernel = EagerSampling(logits_NV.shape[1], logits_NV.device)
        elif request.param == "native":
            kernel = NativeSampling(build_library("sampling"))
        else:
            kernel = NativeSampling(request.getfixturevalue("portable_library"))
        return kernel.draw(logits_NV, requests, softcap=softcap)

    return draw_rows


def request(
    sampling: Sampling, *, seed: int = 0, position: int = 0, token_ids: tuple[int, ...] = (1,)
) -> SamplingRequest:
    return SamplingRequest(sampling, uniform(seed, position), token_ids, 1)


def random_logits(num_rows: int = 1, vocab_size: int = VOCAB, seed: int = 0) -> torch.Tensor:
    return torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * 2


def test_draws_follow_the_softmax(draw: DrawRows) -> None:
    """20,000 draws under one seed per position pass a chi-square test against the softmax at temperature 0.8."""
    vocab_size, num_draws = 12, 20_000
    logits = random_logits(vocab_size=vocab_size)
    requests = [request(Sampling(temperature=0.8), seed=7, position=position) for position in range(num_draws)]
    draws = draw(logits.expand(num_draws, -1), requests)
    counts = torch.bincount(torch.tensor([one.token_id for one in draws]), minlength=vocab_size)
    expected = (logits[0] / 0.8).softmax(-1) * num_draws
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < 31.3  # the 99.9th percentile at 11 degrees of freedom


def test_seeds_and_positions_are_independent() -> None:
    """Neighbouring seeds and positions give numbers without correlation, spread evenly over [0, 1)."""
    numbers = torch.tensor([[uniform(seed, position) for position in range(200)] for seed in range(200)])
    assert numbers.min() >= 0 and numbers.max() < 1
    centred = numbers - numbers.mean()
    # standard error of a correlation over 40,000 pairs is 0.005
    for shifted in (centred.roll(1, 0), centred.roll(1, 1), centred.T):
        assert abs(float((centred * shifted).mean() / centred.var())) < 0.025
    assert uniform(5, 3) == uniform(5, 3) and uniform(-1, 0) == uniform(2**64 - 1, 0)


@settings(max_examples=200, deadline=None)
@given(
    weights=st.lists(st.sampled_from([0.0, 0.0, 1e-30, 1e-3, 1.0, 5.0]), min_size=8, max_size=8),
    number=st.floats(0, 1 - 2**-48),
)
@example(weights=[0.0] * 5 + [1.0, 1e-3, 0.0], number=0.9999999999999964)
def test_inverse_cdf_never_draws_what_is_cut(weights: list[float], number: float) -> None:
    """A token of probability zero is never drawn, and the drawn one is where the distribution reaches the number."""
    probs = torch.tensor(weights)
    if probs.sum() == 0:
        return
    ids, total = inverse_cdf(probs.view(1, 2, 4), torch.tensor([number], dtype=torch.float64))
    assert probs[ids[0]] > 0
    below = float(probs[: ids[0]].double().sum() / total[0])
    through = float(probs[: ids[0] + 1].double().sum() / total[0])
    assert below - 1e-6 <= number <= through + 1e-6


def test_a_row_does_not_depend_on_its_neighbours(draw: DrawRows) -> None:
    """The same row gives the same draw first, last, and beside rows that are cut, penalised, greedy or capped."""
    logits = random_logits(5)
    mine = request(Sampling(temperature=0.7), seed=3, position=9)
    others = [
        request(Sampling(temperature=0.0)),
        request(Sampling(top_k=3, top_p=0.5, min_p=0.1)),
        request(Sampling(repetition_penalty=1.5, frequency_penalty=1.0)),
        request(Sampling(top_logprobs=4)),
    ]
    alone = draw(logits[:1], [mine])[0]
    assert draw(logits, [mine, *others])[0] == alone
    assert draw(logits.roll(-1, 0), [*others, mine])[-1] == alone


def test_more_rows_than_the_buffers_hold_are_drawn_in_turn(draw: DrawRows) -> None:
    """150 rows come back in order."""
    logits = random_logits(150, 40)
    requests = [request(Sampling(), seed=row) for row in range(150)]
    assert [draw(logits[row : row + 1], [requests[row]])[0] for row in range(150)] == draw(logits, requests)


def test_greedy_takes_the_likeliest_with_its_own_logprob(draw: DrawRows) -> None:
    """Temperature 0 takes the largest logit; its logprob is the model's own."""
    logits = random_logits(3)
    for row, one in enumerate(draw(logits, [request(Sampling(temperature=0.0))] * 3)):
        assert one.token_id == int(logits[row].argmax())
        assert one.logprob == pytest.approx(float(logits[row].log_softmax(-1).max()), abs=1e-5)


def test_logprobs_are_those_of_the_distribution_drawn_from(draw: DrawRows) -> None:
    """Temperature, cap, truncation and penalties all enter the logprob of the drawn token."""
    logits = random_logits(3)
    samplings = [Sampling(temperature=1.7), Sampling(temperature=0.5, top_k=5), Sampling(presence_penalty=1.0)]
    requests = [request(sampling, seed=row, token_ids=(1, 4, 4, 9)) for row, sampling in enumerate(samplings)]
    within = torch.tanh(logits / 3.0) * 3.0
    expected = within.clone()
    expected[0] /= 1.7
    kept = within[1].topk(5).indices
    expected[1] = torch.full((VOCAB,), -torch.inf).index_copy(0, kept, within[1, kept] / 0.5)
    expected[2, [4, 9]] -= 1.0
    for row, one in enumerate(draw(logits, requests, softcap=3.0)):
        assert one.logprob == pytest.approx(float(expected[row].log_softmax(-1)[one.token_id]), abs=1e-5)


# The ten likeliest tokens, by hand: cumulative 0.4, 0.6, 0.75, 0.85, 0.9, 0.94, 0.97, 0.98, 0.99, 1.
BY_HAND = torch.tensor([0.4, 0.2, 0.15, 0.1, 0.05, 0.04, 0.03, 0.01, 0.0099, 0.0101])


@pytest.mark.parametrize(
    ("sampling", "num_kept"),
    [
        (Sampling(top_k=3), 3),
        (Sampling(top_p=0.7), 3),
        (Sampling(top_p=0.39), 1),
        (Sampling(top_p=0.001), 1),
        (Sampling(min_p=0.25), 4),
        (Sampling(top_k=2, top_p=0.6), 1),
        (Sampling(top_p=0.9, min_p=0.3), 3),
    ],
)
def test_truncation_keeps_what_was_computed_by_hand(sampling: Sampling, num_kept: int) -> None:
    """Top-k, then top-p of what is left, then min-p relative to the likeliest; alone and beside other rows."""
    assert int((kept_thresholds(BY_HAND[None], [sampling]) <= BY_HAND).sum()) == num_kept
    others = [Sampling(top_k=9), sampling, Sampling(min_p=0.9), Sampling(top_p=0.99)]
    together = kept_thresholds(BY_HAND.expand(4, -1), others)
    assert int((together[1] <= BY_HAND).sum()) == num_kept


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32), top_p=st.floats(0.01, 0.999), spread=st.floats(0.0, 6.0))
def test_a_nucleus_is_the_smallest_that_weighs_enough(seed: int, top_p: float, spread: float) -> None:
    """Flat or peaked, what top-p keeps weighs at least top-p, and without its last token less."""
    generator = torch.Generator().manual_seed(seed)
    probs = (torch.randn(500, generator=generator) * spread).softmax(-1).double().float()
    kept = probs[probs >= kept_thresholds(probs[None], [Sampling(top_p=top_p)])].double()
    assert kept.sum() >= top_p * probs.double().sum() - 1e-5
    if len(kept.unique()) == len(kept):
        assert kept.sum() - kept.min() < top_p * probs.double().sum() + 1e-5


def test_penalties_count_the_answer_and_repetition_the_prompt_too(draw: DrawRows) -> None:
    """Presence once, frequency per occurrence, both over the answer; repetition divides or multiplies over all."""
    logits = torch.tensor([[1.0, -1.0, 2.0, 0.5]])
    asked = SamplingRequest(
        Sampling(temperature=0.0, repetition_penalty=2.0, presence_penalty=0.1, frequency_penalty=0.2, top_logprobs=4),
        0.0, (0, 1, 2, 2), num_prompt=2,
    )  # fmt: skip
    expected = torch.tensor([0.5, -2.0, 1.0 - 0.1 - 0.4, 0.5]).log_softmax(-1)
    top = dict(draw(logits, [asked])[0].top_logprobs)
    assert [top[token] for token in range(4)] == pytest.approx(expected.tolist(), abs=1e-5)


def test_top_logprobs_come_likeliest_first_and_only_when_asked_for(draw: DrawRows) -> None:
    """Each row gets as many pairs as it asked for, under the distribution it was drawn from."""
    logits = random_logits(2)
    asked = replace(Sampling(temperature=2.0), top_logprobs=3)
    first, second = draw(logits, [request(asked), request(Sampling())])
    best = (logits[0] / 2.0).log_softmax(-1).topk(3)
    assert [token for token, _ in first.top_logprobs] == best.indices.tolist()
    assert [logprob for _, logprob in first.top_logprobs] == pytest.approx(best.values.tolist(), abs=1e-5)
    assert second.top_logprobs == ()


def test_a_certain_token_has_logprob_zero(draw: DrawRows) -> None:
    """One logit far above all others is drawn under any number, with logprob 0."""
    logits = torch.full((1, VOCAB), -1e4)
    logits[0, 299] = 0.0
    for number in (0.0, 0.5, 1 - 2**-48):
        one = draw(logits, [SamplingRequest(Sampling(), number, (), 0)])[0]
        assert one.token_id == 299 and math.isclose(one.logprob, 0.0, abs_tol=1e-6)


def mask_of(ids: set[int], vocab_size: int = VOCAB) -> bytes:
    """As llguidance writes masks."""
    words = [sum(1 << bit for bit in range(32) if start + bit in ids) for start in range(0, vocab_size, 32)]
    return array("I", words).tobytes()


def test_only_allowed_tokens_are_drawn_and_renormalised(draw: DrawRows) -> None:
    """Under a mask the logprob is that among the allowed tokens, reported; ids beyond the mask are forbidden."""
    logits = random_logits(40)
    allowed = {3, 64, 255, 299}
    requests = [
        replace(request(Sampling(temperature=0.8, grammar=SOME), seed=row), allowed=mask_of(allowed))
        for row in range(40)
    ]
    for row, one in enumerate(draw(logits, requests)):
        ids = torch.tensor(sorted(allowed))
        expected = (logits[row, ids] / 0.8).log_softmax(-1)[sorted(allowed).index(one.token_id)]
        assert one.logprob == pytest.approx(float(expected), abs=1e-5)
        assert one.kept_ids == (3, 64, 255, 299)
    short = replace(request(Sampling(grammar=SOME)), allowed=mask_of({7}, 32))
    (only,) = draw(logits[:1], [short])
    assert (only.token_id, only.kept_ids) == (7, (7,)) and only.logprob == pytest.approx(0.0, abs=1e-6)


def test_greedy_takes_the_likeliest_of_the_allowed(draw: DrawRows) -> None:
    """A greedy row under a mask; it draws nothing, so it reports no kept ids."""
    logits = random_logits(1)
    (one,) = draw(logits, [replace(request(Sampling(temperature=0.0, grammar=SOME)), allowed=mask_of({5, 9, 80}))])
    best = max((5, 9, 80), key=lambda token: float(logits[0, token]))
    assert (one.token_id, one.kept_ids) == (best, ())


def test_biases_come_after_penalties_and_before_the_temperature(draw: DrawRows) -> None:
    """The distribution is that of (penalised logits + biases) / temperature."""
    logits = random_logits(1)
    sampling = Sampling(temperature=0.5, repetition_penalty=2.0, logit_bias=((2, -3.0), (4, 1.5)), top_logprobs=VOCAB)
    expected = logits[0].clone()
    expected[4] = (expected[4] / 2 if expected[4] > 0 else expected[4] * 2) + 1.5
    expected[1] = expected[1] / 2 if expected[1] > 0 else expected[1] * 2
    expected[2] -= 3.0
    top = dict(draw(logits, [request(sampling, token_ids=(1, 4))])[0].top_logprobs)
    logprobs = (expected / 0.5).log_softmax(-1)
    assert [top[token] for token in range(VOCAB)] == pytest.approx(logprobs.tolist(), abs=1e-4)


def test_what_was_kept_is_told_where_the_sampling_cuts(draw: DrawRows) -> None:
    """The ids of top-k, top-p, min-p, rising; None where they are too many; nothing where nothing is cut."""
    logits = random_logits(5, 1000)
    samplings = [
        Sampling(top_k=3),
        Sampling(top_k=MAX_KEPT_IDS + 1),
        Sampling(),
        Sampling(min_p=0.5),
        Sampling(top_p=0.3),
    ]
    draws = draw(logits, [request(sampling, seed=row) for row, sampling in enumerate(samplings)])
    assert draws[0].kept_ids == tuple(sorted(logits[0].topk(3).indices.tolist()))
    assert draws[1].kept_ids is None and draws[2].kept_ids == ()
    probs = logits[3].softmax(-1)
    assert draws[3].kept_ids == tuple((probs >= 0.5 * probs.max()).nonzero()[:, 0].tolist())
    kept = logits[4].softmax(-1)[list(draws[4].kept_ids)]
    assert kept.sum() >= 0.3 > kept.sum() - kept.min()
    for one in (draws[0], draws[3], draws[4]):
        assert one.token_id in one.kept_ids


def test_cut_tokens_are_no_top_logprobs(draw: DrawRows) -> None:
    """Of three likeliest tokens asked for there are two if only two could be drawn."""
    (one,) = draw(random_logits(1), [replace(request(Sampling(top_logprobs=3, grammar=SOME)), allowed=mask_of({8, 9}))])
    assert {token for token, _ in one.top_logprobs} == {8, 9}


SAMPLINGS = (
    Sampling(),
    Sampling(logit_bias=((0, 5.0), (1110, -2.0)), temperature=0.9),
    Sampling(grammar=SOME),
    Sampling(temperature=0.6, top_logprobs=5),
    Sampling(temperature=0.0),
    Sampling(top_k=7, top_p=0.8),
    Sampling(temperature=1.3, top_p=0.6, min_p=0.05),
    Sampling(repetition_penalty=1.3, frequency_penalty=0.4, presence_penalty=0.2, top_p=0.95),
)


@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_native_kernel_draws_what_torch_draws(dtype: torch.dtype, softcap: float | None) -> None:
    """The same numbers give the same tokens except where one falls on a boundary, with logprobs within 1e-5."""
    logits_NV = random_logits(240, 1111).to(dtype)
    text = (*range(0, 60, 3), 9, 9, 12)
    requests = [request(SAMPLINGS[row % len(SAMPLINGS)], seed=row, token_ids=text) for row in range(240)]
    allowed = mask_of(set(range(0, 1111, 3)), 1111)
    requests = [replace(each, allowed=allowed) if each.sampling.grammar else each for each in requests]
    native = NativeSampling(build_library("sampling")).draw(logits_NV, requests, softcap=softcap)
    eager = EagerSampling(1111, logits_NV.device).draw(logits_NV, requests, softcap=softcap)
    same = [(one, other) for one, other in zip(native, eager, strict=True) if one.token_id == other.token_id]
    assert len(same) >= 239
    for one, other in same:
        assert one.logprob == pytest.approx(other.logprob, abs=1e-5)
        assert len(set(one.kept_ids or ()) ^ set(other.kept_ids or ())) <= 1
        assert [value for _, value in one.top_logprobs] == pytest.approx(
            [value for _, value in other.top_logprobs], abs=1e-5
        )


def test_operations_do_not_grow_with_the_rows() -> None:
    """A card is told of all rows at once, whatever they ask for: each operation takes as long as hundreds of rows."""
    text = (*range(0, 60, 3), 9, 9, 12)
    asked = [request(SAMPLINGS[row % len(SAMPLINGS)], seed=row, token_ids=text) for row in range(64)]
    allowed = mask_of(set(range(0, 1111, 3)), 1111)
    requests = [replace(each, allowed=allowed) if each.sampling.grammar else each for each in asked]

    class Counted(TorchDispatchMode):
        num = 0

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.num += 1
            return function(*args, **(kwargs or {}))

    nums = []
    for num_rows in (16, 64):  # two and eight rows of each kind
        with Counted() as counted:
            kernel = EagerSampling(1111, torch.device("cpu"))
            kernel.draw(random_logits(num_rows, 1111), requests[:num_rows], softcap=None)
        nums.append(counted.num)
    assert nums[0] == nums[1]


def test_capped_logits_are_what_both_sides_score() -> None:
    """Without a cap logits stay; with one they follow the hyperbolic tangent."""
    logits = torch.tensor([-8.0, 0.0, 2.0])
    assert torch.equal(capped(logits, None), logits)
    assert torch.allclose(capped(logits, 2.0), torch.tensor([-1.99866, 0.0, 1.52319]), atol=1e-4)


def test_a_head_that_the_native_kernel_cannot_serve_gets_the_eager_one() -> None:
    """Asked for by name it is refused with the reason; left to itself the engine takes what works."""
    odd = torch.zeros(8, 2, dtype=torch.float64)
    assert isinstance(choose_sampling_kernel("auto", odd), EagerSampling)
    assert isinstance(choose_sampling_kernel("eager", odd.float()), EagerSampling)
    assert isinstance(choose_sampling_kernel("auto", odd.float()), NativeSampling)
    with pytest.raises(BackendError, match="float64"):
        choose_sampling_kernel("native", odd)
