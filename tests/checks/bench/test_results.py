"""What both sides printed becomes rows and one object."""

from __future__ import annotations

from typing import Any

from ludus.checks.bench.pairs import Measured, Results
from ludus.checks.bench.results import result, rows_of
from ludus.checks.bench.table import BENCHES

KEYS = {"ours", "peer", "ratio", "ratio_min", "ratio_max", "ceiling_share"}


def rows(bench: str, *measured: list[Results]) -> list[dict[str, Any]]:
    return rows_of(BENCHES[bench], Measured(*measured))


def sampled(rate: float, decoded: float) -> Results:
    rates = {"tokens_per_s": rate, "decode_tokens_per_s": decoded, "ceiling_share": decoded / 2000}
    row = {"requests": 64, **rates, "bandwidth_share": decoded / 10000}
    return {"rows": [row, {**row, "requests": 1}], "versions": {"torch": "2"}}


def test_sampling_has_a_row_for_every_number_of_requests() -> None:
    """Tokens a second of both sides; decoding alone against the linear layers of the same process."""
    ours, peer = [sampled(1200.0, 1500.0), sampled(1000.0, 1400.0)], [sampled(600.0, 1.0), sampled(400.0, 1.0)]
    first, second = rows("sample", ours, peer)
    assert (first["requests"], second["requests"]) == (64, 1)
    assert first["ours"] == 1100.0 and first["peer"] == 500.0 and first["ratio"] == 2.25
    assert first["ceiling_share"] == 0.725 and first["decode_tokens_per_s"] == 1450.0
    assert first["bandwidth_share"] == 0.145


def test_the_object_holds_the_first_row_and_all_rows() -> None:
    """What --json prints has the asked keys at the top, for a comparison and for ours alone."""
    both = Measured([sampled(1200.0, 1500.0)], [sampled(600.0, 1.0)])
    body = result("sample", BENCHES["sample"], both)
    assert set(body) >= KEYS | {"bench", "rows", "versions"}
    assert body["ratio"] == 2.0 and len(body["rows"]) == 2 and set(body["versions"]) == {"ours", "peer"}
    body = result("sample", BENCHES["sample"], Measured(both.ours, None))
    assert body["ours"] == 1200.0 and body["peer"] is body["ratio"] is None and set(body["versions"]) == {"ours"}


def test_peaks_of_both_sides_stand_beside() -> None:
    """A result of the peer has its name with `peer_` before it; what a work has no ceiling for has no share."""
    ours = {"work": "dense", "tokens_per_s": 10.0, "ceiling_share": 0.5, "matrix_gflops_per_s": 1.0, "peak_mb": 5.0}
    peer = {"tokens_per_s": 5.0, "peak_mb": 6.0}
    (row,) = rows("train", [ours], [peer])
    assert row["ceiling_share"] == 0.5 and row["ratio"] == 2.0 and (row["peak_mb"], row["peer_peak_mb"]) == (5.0, 6.0)
    assert rows("train", [{**ours, "ceiling_share": None}], [peer])[0]["ceiling_share"] is None


def test_what_was_held_of_a_card_stands_in_every_row() -> None:
    """With the card's name beside the rows; without a card neither is there."""
    plain = sampled(1200.0, 1500.0)
    ours = {**plain, "card": "NVIDIA H100", "peak_card_mb": 5000.0}
    body = result("sample", BENCHES["sample"], Measured([ours, {**ours, "peak_card_mb": 7000.0}], None))
    assert body["card"] == "NVIDIA H100"
    assert [row["peak_card_mb"] for row in body["rows"]] == [6000.0, 6000.0]
    body = result("sample", BENCHES["sample"], Measured([plain], None))
    assert not {"card", "peak_card_mb"} & {*body, *body["rows"][0]}


def test_the_first_step_is_left_out() -> None:
    """The median is over the steps after the first; of times the ratio is the peer's over ours."""

    def steps(*seconds: float) -> Results:
        lines = [{"seconds": each, "rollout_s": 1.0, "train_s": 0.5, "publish_s": 0.1} for each in seconds]
        return {"steps": lines, "peak_mb": 1.0}

    (row,) = rows("step", [steps(90.0, 4.0, 6.0, 5.0)], [steps(1.0, 25.0, 25.0)])
    assert (row["ours"], row["peer"], row["ratio"]) == (5.0, 25.0, 5.0) and row["train_s"] == 0.5


def test_publishing_is_compared_with_one_figure() -> None:
    """Every way to treat keys and values has a row; the peer knows only one way."""
    row = {"seconds": 0.1, "ceiling_share": 0.7, "copy_s": 0.05, "extra_s": 0.2}
    counts = {"carried_tokens": 10, "stale_tokens": 20}
    ours = {"rows": [{"kv": "keep", **row, **counts}, {"kv": "recompute", **row, **counts}]}
    keep, recompute = rows("publish", [ours], [{"seconds": 2.0}])
    assert (keep["kv"], recompute["kv"]) == ("keep", "recompute")
    assert recompute["ratio"] == 20.0 and keep["ceiling_share"] == 0.7 and keep["stale_tokens"] == 20
