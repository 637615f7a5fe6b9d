from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.runs.watch.health import FEW, Finding, Observed, findings

LONG = 4 * FEW


def observed(
    series: dict[str, list[float]] | None = None, outcomes: dict[str, int] | None = None, **more: Any
) -> Observed:
    known = {name: list(enumerate(values, start=1)) for name, values in (series or {}).items()}
    return Observed("team~run", lambda name: known.get(name, []), outcomes or {}, **more)


def kinds(found: list[Finding]) -> list[str]:
    return [each.kind for each in found]


def test_a_run_that_is_well_has_nothing_to_look_at() -> None:
    series = {
        "train/entropy": [1.0 + 0.01 * step for step in range(LONG)],
        "ledger/sampled": [100.0] * LONG,
        "ledger/masked_zero_advantage": [30.0] * LONG,
        "train/logprob_gap_mean": [0.01] * LONG,
        "train/clip_fraction": [0.02] * LONG,
        "train/kl": [0.001] * LONG,
    }
    assert findings(observed(series, {"ok": 100, "failed": 3}, state="running")) == []
    assert findings(observed()) == []


@pytest.mark.parametrize(
    ("series", "kind", "says"),
    [
        ({"train/entropy": [1.0] * FEW + [0.05] * FEW}, "entropy_collapsed", "from 1 to 0.05 nats"),
        (
            {"ledger/sampled": [100.0] * FEW, "ledger/masked_zero_advantage": [90.0] * FEW},
            "reward_flat",
            "90% of the tokens",
        ),
        ({"train/logprob_gap_mean": [0.01] * FEW + [0.2] * FEW}, "gap_growing", "from 0.01 to 0.2 nats"),
        ({"train/clip_fraction": [0.4] * FEW}, "lr_too_high", "40% of the tokens have their ratio clipped"),
        ({"train/kl": [0.3] * FEW}, "lr_too_high", "0.3 nats a token"),
        ({"train/skipped_steps": [1.0, 0.0] * FEW}, "skipped", "5 of the last 10 steps"),
        ({"ledger/sampled": [100.0] * FEW, "ledger/masked_stale": [25.0] * FEW}, "stale", "25% of the tokens"),
    ],
)
def test_what_is_wrong_is_said_with_its_numbers_and_where_to_look(
    series: dict[str, list[float]], kind: str, says: str
) -> None:
    """The evidence is a link into the page, of this run."""
    (found,) = findings(observed(series))
    assert found.kind == kind and says in found.text and found.evidence.startswith("#/run/team~run")
    assert findings(observed({name: values[: FEW - 1] for name, values in series.items()})) == []


def test_episodes_that_fail_are_told_with_the_most_frequent_reason() -> None:
    """Half of them are worse than a fifth; one in ten is nothing."""
    failures = [{"outcome": "failed", "count": 6, "reason": "KeyError: x", "first": "ep/1@7"}]
    bad, named = findings(observed(outcomes={"ok": 4, "failed": 6}, failures=failures))
    assert named.text == "6 x failed: KeyError: x" and named.evidence == "#/run/team~run/episode/ep%2F1%407"
    assert bad.severity == "bad" and "60% of the last 10 episodes ended as failed, most often: KeyError: x" in bad.text
    assert bad.evidence == "#/run/team~run/episodes?outcome=failed&eval=0"
    (warned,) = findings(observed(outcomes={"ok": 7, "timeout": 3}))
    assert warned.severity == "warn" and warned.evidence.endswith("outcome=timeout&eval=0")
    assert findings(observed(outcomes={"ok": 90, "failed": 10})) == []


@given(ok=st.integers(0, 50), failed=st.integers(0, 50), more=st.integers(1, 50))
def test_more_failures_never_make_a_finding_go_away(ok: int, failed: int, more: int) -> None:
    before = findings(observed(outcomes={"ok": ok, "failed": failed}))
    after = findings(observed(outcomes={"ok": ok, "failed": failed + more}))
    order = ("info", "warn", "bad")
    assert len(after) >= len(before)
    assert not before or order.index(after[0].severity) >= order.index(before[0].severity)


numbers = st.floats(allow_nan=False, allow_infinity=False, width=32)


@given(
    entropies=st.lists(st.floats(0, 20), max_size=30),
    sampled=st.lists(st.integers(0, 10**6), max_size=30),
    share=st.floats(0, 1),
    gaps=st.lists(numbers, max_size=30),
)
def test_whatever_was_measured_a_judgement_is_in_words(
    entropies: list[float], sampled: list[int], share: float, gaps: list[float]
) -> None:
    """One sentence, a known severity, a link; the worst first."""
    series = {
        "train/entropy": entropies,
        "ledger/sampled": [float(each) for each in sampled],
        "ledger/masked_zero_advantage": [each * share for each in sampled],
        "train/logprob_gap_mean": gaps,
        "train/kl": gaps,
        "train/clip_fraction": gaps,
        "train/skipped_steps": gaps,
    }
    found = findings(observed(series))
    severities = [("bad", "warn", "info").index(each.severity) for each in found]
    assert severities == sorted(severities)
    assert all("\n" not in each.text and each.evidence.startswith("#/") for each in found)


@given(scale=st.floats(1e-3, 1e3), share=st.floats(0.0, 1.0))
def test_a_collapse_does_not_depend_on_the_unit(scale: float, share: float) -> None:
    def collapses(unit: float) -> bool:
        values = [unit] * FEW + [unit * share] * FEW
        return kinds(findings(observed({"train/entropy": values}))) == ["entropy_collapsed"]

    if not math.isclose(share, 0.1, rel_tol=1e-6):
        assert collapses(1.0) == collapses(scale) == (share < 0.1)
