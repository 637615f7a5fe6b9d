from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.episodes.ledger import MASK_REASONS
from ludus.runs.watch.health import FEW, UNWANTED, Finding, Observed, findings

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
        ({"batch/zero_advantage_tokens": [85.0] * FEW, "ledger/sampled": [100.0] * FEW}, "reward_flat", "85% of the"),
        ({"train/logprob_gap_mean": [0.4] * 2 * FEW}, "gap_large", "is 0.4 nats, and was 0.4 at first"),
        (
            {
                "ledger/sampled": [100.0] * FEW,
                "ledger/masked_truncated": [50.0] * FEW,
                "ledger/masked_too_long": [9.0],
            },
            "untrained",
            "52% of the tokens of the last 5 steps were not trained, most of them as “truncated” (50%)",
        ),
        ({"ledger/sampled": [100.0] * FEW, "ledger/masked_no_credit": [99.0] * FEW}, "untrained", "“no credit” (99%)"),
        (
            {"eval/episodes": [10.0], "eval/failed_episodes": [6.0]},
            "failing_evaluation",
            "60% of the 10 episodes of the evaluation at step 1",
        ),
        ({"ledger/sampled": [100.0] * FEW, "ledger/masked_stale": [25.0] * FEW}, "stale", "25% of the tokens"),
    ],
)
def test_what_is_wrong_is_said_with_its_numbers_and_where_to_look(
    series: dict[str, list[float]], kind: str, says: str
) -> None:
    """The evidence is a link into the page, of this run."""
    (found,) = findings(observed(series))
    assert found.kind == kind and says in found.text and found.evidence.startswith("#/run/team~run")
    fewer = {name: values[: FEW - 1] for name, values in series.items() if not name.startswith("eval/")}
    assert findings(observed(fewer)) == []


def test_skipped_steps_are_counted_among_the_steps_that_there_were() -> None:
    """Only a step that was skipped has the metric: two of the last ten are told at once, many of long ago are not."""

    def skipped(steps: list[int], *, of: int) -> list[Finding]:
        points = {
            "train/skipped_steps": [(step, 1.0) for step in steps],
            "ledger/sampled": [(step, 100.0) for step in range(1, of + 1)],
        }
        return findings(Observed("run", lambda name: points.get(name, [])))

    (found,) = skipped([12, 15], of=20)
    assert found.kind == "skipped" and "2 of the last 10 steps" in found.text
    assert skipped([20], of=20) == [] and skipped(list(range(1, 11)), of=100) == []


SOLVED = [0.05, 0.4, 0.8, 0.95, 0.95, 0.98, 1.0, 1.0, 0.99, 1.0]
FLAT = {"ledger/sampled": [100.0] * 10, "ledger/masked_zero_advantage": [95.0] * 10}


@pytest.mark.parametrize(
    ("rewards", "best", "severity"),
    [
        (SOLVED, 1.0, "info"),  # every group agrees since all have got what there is to get
        ([-1.0, *(-0.02 for _ in range(9))], 0.0, "info"),
        ([0.0] * 10, 0.0, "bad"),  # nobody has ever got anything
        ([0.1, 0.2, 0.3, 0.3, 0.3, *(0.3 for _ in range(5))], 1.0, "bad"),  # they agree on a bad answer
        ([1.0] * 10, 1.0, "bad"),  # there was nothing to learn from the beginning
        (SOLVED, None, "bad"),
    ],
)
def test_rewards_are_flat_for_better_or_for_worse(rewards: list[float], best: float | None, severity: str) -> None:
    """Where nearly all is solved it is a note; the evidence is the step with its groups."""
    (found,) = findings(observed({**FLAT, "rollout/reward": rewards}, best_reward=best))
    assert (found.kind, found.severity) == ("reward_flat", severity)
    assert "95% of the tokens" in found.text and found.evidence == "#/run/team~run/step/10"


def test_entropy_may_fall_where_the_reward_rises() -> None:
    """As in the guessing game, whose players are to be sure of their guesses: a note, and an alarm where the reward
    has stayed where it was."""
    fallen = [6.1, 6.3, 5.6, 4.3, 3.2, 2.2, 0.3, 0.09, 0.08, 0.09, 0.08, 0.08]

    def severity(rewards: list[float]) -> tuple[str, str]:
        (found,) = findings(observed({"train/entropy": fallen, "rollout/reward": rewards}, best_reward=6.0))
        assert found.kind == "entropy_collapsed" and "to 0.08 nats" in found.text
        return found.severity, found.text

    risen, text = severity([0.0, 0.1, 0.2, 0.6, 1.5, 2.0, 2.5, 3.0, 3.4, 3.5, 3.4, 3.5])
    assert risen == "info" and "rose from 0 to 3.4" in text
    stuck, text = severity([0.2, 0.3, 0.2, 0.4, 0.5, 0.4, 0.5, 0.4, 0.5, 0.6, 0.5, 0.5])
    assert stuck == "bad" and "(0.2 at first, 0.5 now)" in text


def test_masks_that_are_meant_are_no_problem() -> None:
    """What an algorithm pairs, an agent leaves out or does not reward, or a baseline needs; the others are reasons of
    the ledger."""
    meant = ("not_paired", "not_chosen", "greedy", "left_out", "not_accepted", "evaluation")
    series = {f"ledger/masked_{reason}": [90.0] * FEW for reason in (*meant, "no_credit")}
    assert findings(observed(series | {"ledger/sampled": [100.0] * FEW})) == []
    assert set(UNWANTED) <= set(MASK_REASONS) - set(meant)


def test_an_old_policy_may_be_the_reason_for_its_distance() -> None:
    series = {"train/kl": [0.3] * FEW, "staleness/mean_versions": [2.5] * FEW}
    (found,) = findings(observed(series))
    assert found.kind == "lr_too_high" and "or the tokens too old (2.5 versions)" in found.text


def test_the_reason_is_that_of_what_fails_now() -> None:
    """Not of what failed long ago, nor of another outcome that is more frequent."""
    long_ago = {"outcome": "failed", "count": 900, "reason": "KeyError: x", "first": "ep@7"}
    now = [
        {"outcome": "lost", "count": 200, "reason": "its process was killed", "first": "ep@90"},
        {"outcome": "timeout", "count": 150, "reason": "longer than 60 s", "first": "ep@91"},
    ]
    found, *_ = findings(observed(outcomes={"ok": 50, "timeout": 150, "lost": 200}, failing=now, failures=[long_ago]))
    assert found.kind == "failing" and found.text.endswith("ended as timeout, most often: longer than 60 s")


def test_episodes_that_fail_are_told_with_the_most_frequent_reason() -> None:
    """Half of them are worse than a fifth; one in ten is nothing."""
    failures = [{"outcome": "failed", "count": 6, "reason": "KeyError: x", "first": "ep/1@7"}]
    bad, named = findings(observed(outcomes={"ok": 4, "failed": 6}, failing=failures, failures=failures))
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
