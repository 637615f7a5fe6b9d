"""Our sampling measured on a tiny model."""

from __future__ import annotations

import asyncio

import pytest

from ludus.checks.bench.machine import versions
from ludus.checks.bench.sample import Arrivals, decoding_rate, measure_sample
from ludus.checks.bench.workloads import SampleWork


def test_every_number_of_requests_has_its_rates(small_sample: SampleWork) -> None:
    """Each batch is sampled to its full length, and has rates and a ceiling of its own."""
    figures = asyncio.run(measure_sample(small_sample))
    assert [row["requests"] for row in figures["rows"]] == [1, 3]
    for row in figures["rows"]:
        rates = (row["tokens_per_s"], row["decode_tokens_per_s"], row["ceiling_share"])
        assert min(*rates, row["bandwidth_share"], row["matrix_share"]) > 0
    assert set(versions()) == {"python", "torch", "transformers"}


def test_decoding_counts_only_while_all_decode() -> None:
    """From the last first token to the first last one: 2 requests, 3 steps of a second, 6 tokens."""
    early, late = Arrivals([0.0, 1.0, 2.0, 3.0, 4.0, 5.0]), Arrivals([2.1, 3.1, 4.1, 5.1])
    assert decoding_rate([early, late]) == pytest.approx(2.0)
    assert decoding_rate([late]) == pytest.approx(1.0)
    assert decoding_rate([Arrivals([1.0])]) != decoding_rate([Arrivals([1.0])])  # NaN: nothing was decoded
