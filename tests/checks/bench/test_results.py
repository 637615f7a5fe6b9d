"""Figures of both sides become rows and one object."""

from __future__ import annotations

from ludus.checks.bench.pairs import Measured
from ludus.checks.bench.results import publish_rows, result, sample_rows, step_row, train_row

KEYS = {"ours", "peer", "ratio", "ratio_min", "ratio_max", "ceiling_share"}


def sampled(rate: float, decoded: float) -> dict[str, object]:
    rates = {"tokens_per_s": rate, "decode_tokens_per_s": decoded, "ceiling_tokens_per_s": 2000.0}
    row = {"requests": 64, **rates, "bandwidth_share": decoded / 10000}
    return {"rows": [row, {**row, "requests": 1}], "versions": {"torch": "2"}}


def test_sampling_has_a_row_for_every_number_of_requests() -> None:
    """Tokens a second of both sides; decoding alone against the linear layers of the same process."""
    measured = Measured([sampled(1200.0, 1500.0), sampled(1000.0, 1400.0)], [sampled(600.0, 1.0), sampled(400.0, 1.0)])
    rows = sample_rows(measured)
    assert [row["requests"] for row in rows] == [64, 1]
    assert rows[0]["ours"] == 1100.0 and rows[0]["peer"] == 500.0 and rows[0]["ratio"] == 2.25
    assert rows[0]["ceiling_share"] == 0.725 and rows[0]["decode_tokens_per_s"] == 1450.0
    assert rows[0]["bandwidth_share"] == 0.145


def test_the_object_holds_the_first_row_and_all_rows() -> None:
    """What --json prints has the asked keys at the top, for a comparison and for ours alone."""
    both = Measured([sampled(1200.0, 1500.0)], [sampled(600.0, 1.0)])
    body = result("sample", sample_rows(both), both)
    assert set(body) >= KEYS | {"bench", "rows", "machine", "versions"}
    assert body["ratio"] == 2.0 and len(body["rows"]) == 2 and set(body["versions"]) == {"ours", "peer"}
    alone = Measured(both.ours, None)
    body = result("sample", sample_rows(alone), alone)
    assert body["ours"] == 1200.0 and body["peer"] is body["ratio"] is None and set(body["versions"]) == {"ours"}


def test_the_share_of_the_matrix_rate() -> None:
    """6 operations a weight and token: 100 weights at 10 tokens a second are 6,000 of 12,000 a second."""
    ours = {"tokens_per_s": 10.0, "num_parameters": 100, "matrix_flops_per_s": 12000.0, "peak_mb": 5.0}
    measured = Measured([ours], [{"tokens_per_s": 5.0, "peak_mb": 6.0}])
    row = train_row(measured, flops_per_weight=6)
    assert row["ceiling_share"] == 0.5 and row["ratio"] == 2.0 and (row["peak_mb"], row["peer_peak_mb"]) == (5.0, 6.0)
    assert train_row(measured, flops_per_weight=None)["ceiling_share"] is None


def test_the_first_step_is_left_out() -> None:
    """The median is over the steps after the first; of times the ratio is the peer's over ours."""

    def steps(*seconds: float) -> dict[str, object]:
        lines = [{"seconds": each, "rollout_s": 1.0, "train_s": 0.5, "publish_s": 0.1} for each in seconds]
        return {"steps": lines, "peak_mb": 1.0}

    row = step_row(Measured([steps(90.0, 4.0, 6.0, 5.0)], [steps(1.0, 25.0, 25.0)]))
    assert (row["ours"], row["peer"], row["ratio"]) == (5.0, 25.0, 5.0) and row["train_s"] == 0.5


def test_publishing_is_compared_with_one_figure() -> None:
    """Every way to treat keys and values has a row; the peer knows only one way."""
    row = {"publish_s": 0.1, "copy_ceiling_share": 0.7, "copy_s": 0.05, "extra_s": 0.2}
    counts = {"carried_tokens": 10, "stale_tokens": 20}
    ours = {"rows": [{"kv": "keep", **row, **counts}, {"kv": "recompute", **row, **counts}]}
    rows = publish_rows(Measured([ours], [{"reload_s": 2.0}]))
    assert [each["kv"] for each in rows] == ["keep", "recompute"]
    assert rows[1]["ratio"] == 20.0 and rows[0]["ceiling_share"] == 0.7 and rows[0]["stale_tokens"] == 20
