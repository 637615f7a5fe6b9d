"""Finds problems of a run: sentences with numbers, each with a link to the evidence. Pure.

Knows: names of metrics, counts of outcomes.  Knows not: files, HTTP.
Invariants: the text of a finding contains its numbers; a run of too few steps has no findings; worsening a problem
never removes its finding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean, median
from typing import Any, Literal
from urllib.parse import quote, urlencode

Points = Sequence[tuple[int, float]]
Severity = Literal["info", "warn", "bad"]

FEW = 5
"""Number of first, and of last, steps whose medians are compared to judge a trend."""
COLLAPSED = 0.1  # share of the initial entropy
FLAT_SHARE = 0.8  # share of sampled tokens: a run that learns from a fifth of its groups still progresses
GAP_GROWS, GAP_IS_LARGE = 3.0, 0.05  # factor on the initial gap, and nats a token
FAILING_SHARE, HALF = 0.2, 0.5  # shares of the episodes
CLIPPED_SHARE, KL_IS_LARGE = 0.3, 0.1  # share of tokens, and nats a token: the policy moves too far in a step
SKIPPED_SHARE = 0.2  # share of optimizer steps
STALE_SHARE = 0.1  # share of sampled tokens that are masked as too old


_MOST_NAMED = 5  # kinds of failures, and of forks, that are listed: a longer list would not be read


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem of a run."""

    kind: str
    severity: Severity
    text: str
    evidence: str
    """A link to the evidence in the page."""

    def as_json(self) -> dict[str, str]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Observed:
    """The data that health is judged by."""

    run_id: str
    points: Callable[[str], Points]
    """Returns a metric by name: ascending steps with its values."""
    outcomes: Mapping[str, int] = field(default_factory=dict)
    """Counts of the outcomes of the newest few hundred training episodes."""
    failures: Sequence[Mapping[str, Any]] = ()
    """Failures of training episodes, grouped by cause, the most frequent first: `outcome`, `count`, `reason`, and
    `first`, the id of the first episode."""
    forks: Mapping[str, int] = field(default_factory=dict)
    """Number of turns whose prompt forked, by reason."""
    state: str = "unknown"


def findings(observed: Observed) -> list[Finding]:
    """The problems of a run, the worst first."""
    found = [finding for check in _CHECKS for finding in check(observed)]
    return sorted(found, key=lambda each: ("bad", "warn", "info").index(each.severity))


def _ends(points: Points) -> tuple[float, float] | None:
    """Medians of the first and of the last `FEW` steps. None: there are too few."""
    if len(points) < 2 * FEW:
        return None
    values = [value for _, value in points]
    return median(values[:FEW]), median(values[-FEW:])


def _entropy(observed: Observed) -> Iterator[Finding]:
    ends = _ends(observed.points("train/entropy"))
    if ends is not None and ends[0] > 0 and ends[1] < COLLAPSED * ends[0]:
        text = f"Entropy has collapsed: from {ends[0]:.3g} to {ends[1]:.3g} nats a token; answers are nearly all alike"
        yield Finding("entropy_collapsed", "bad", text, _curves(observed, "train/entropy", "rollout/reward"))


def _flat(observed: Observed) -> Iterator[Finding]:
    sampled, masked = dict(observed.points("ledger/sampled")), dict(observed.points("ledger/masked_zero_advantage"))
    last = sorted(sampled)[-FEW:]
    total = sum(sampled[step] for step in last)
    flat = sum(masked.get(step, 0.0) for step in last)
    if len(last) == FEW and total and flat >= FLAT_SHARE * total:
        text = (
            f"Rewards are flat: in the last {FEW} steps {flat / total:.0%} of the tokens were in groups whose members "
            "all got the same reward, and teach nothing; other rows, more samples a group or a finer reward would"
        )
        yield Finding("reward_flat", "bad", text, _episodes(observed, step=last[-1], eval=0))


def _gap(observed: Observed) -> Iterator[Finding]:
    ends = _ends(observed.points("train/logprob_gap_mean"))
    if ends is not None and ends[1] >= GAP_IS_LARGE and ends[1] >= GAP_GROWS * ends[0]:
        text = (
            f"Sampler and trainer drift apart: the mean gap of a token's logprob grew from {ends[0]:.3g} to "
            f"{ends[1]:.3g} nats"
        )
        yield Finding(
            "gap_growing", "warn", text, _curves(observed, "train/logprob_gap_mean", "staleness/mean_versions")
        )


def _failing(observed: Observed) -> Iterator[Finding]:
    total = sum(observed.outcomes.values())
    bad = {kind: count for kind, count in observed.outcomes.items() if kind in ("failed", "timeout")}
    share = sum(bad.values()) / total if total else 0.0
    if total >= FEW and share >= FAILING_SHARE:
        kind = max(bad, key=lambda each: bad[each])
        why = observed.failures[0]["reason"] if observed.failures else ""
        because = f", most often: {why}" if why else ""
        text = f"{share:.0%} of the last {total} episodes ended as {' or '.join(sorted(bad))}{because}"
        yield Finding("failing", "bad" if share >= HALF else "warn", text, _episodes(observed, outcome=kind, eval=0))


def _ended_badly(observed: Observed) -> Iterator[Finding]:
    for each in observed.failures[:_MOST_NAMED]:
        text = f"{each['count']:,} x {each['outcome']}: {each['reason']}"
        yield Finding("ended_badly", "info", text, f"{_run(observed)}/episode/{quote(each['first'], safe='')}")


def _forked(observed: Observed) -> Iterator[Finding]:
    for reason, num_turns in [*observed.forks.items()][:_MOST_NAMED]:
        text = f"{num_turns:,} turns did not extend the tokens before them: {reason.replace('_', ' ')}"
        yield Finding("forked", "info", text, _curves(observed, f"rollout/fork_{reason}_turns", "rollout/forked_share"))


def _rate(observed: Observed) -> Iterator[Finding]:
    for name, limit, says in (
        ("train/clip_fraction", CLIPPED_SHARE, "of the tokens have their ratio clipped"),
        ("train/kl", KL_IS_LARGE, "nats a token lie between the policy and the one that sampled"),
    ):
        last = [value for _, value in observed.points(name)[-FEW:]]
        if len(last) == FEW and fmean(last) >= limit:
            number = f"{fmean(last):.0%}" if name.endswith("fraction") else f"{fmean(last):.3g}"
            text = f"The learning rate may be too high: over the last {FEW} steps {number} {says}"
            yield Finding("lr_too_high", "warn", text, _curves(observed, name, "train/lr", "train/grad_norm"))


def _skipped(observed: Observed) -> Iterator[Finding]:
    points = observed.points("train/skipped_steps")[-2 * FEW :]
    skipped = sum(value > 0 for _, value in points)
    if len(points) == 2 * FEW and skipped >= SKIPPED_SHARE * len(points):
        text = (
            f"{skipped} of the last {len(points)} steps changed nothing: the gradient was no number, or nothing could "
        )
        yield Finding(
            "skipped", "warn", f"{text}be trained", _curves(observed, "train/skipped_steps", "train/grad_norm")
        )


def _stale(observed: Observed) -> Iterator[Finding]:
    sampled, stale = dict(observed.points("ledger/sampled")), dict(observed.points("ledger/masked_stale"))
    last = sorted(sampled)[-FEW:]
    total, masked = sum(sampled[step] for step in last), sum(stale.get(step, 0.0) for step in last)
    if len(last) == FEW and total and masked >= STALE_SHARE * total:
        text = f"{masked / total:.0%} of the tokens of the last {FEW} steps were too old to be trained"
        yield Finding("stale", "warn", text, _curves(observed, "ledger/masked_stale", "staleness/max_versions"))


def _broken_off(observed: Observed) -> Iterator[Finding]:
    if observed.state == "interrupted":
        text = "The run was broken off; --resume goes on from its last checkpoint"
        yield Finding("interrupted", "info", text, _curves(observed, "rollout/reward"))


_CHECKS = (_entropy, _flat, _gap, _failing, _ended_badly, _forked, _rate, _skipped, _stale, _broken_off)


def _run(observed: Observed) -> str:
    return f"#/run/{quote(observed.run_id, safe='')}"


def _curves(observed: Observed, *names: str) -> str:
    return f"{_run(observed)}?{urlencode({'m': ','.join(names)}, safe=',/')}"


def _episodes(observed: Observed, **filters: Any) -> str:
    return f"{_run(observed)}/episodes?{urlencode(filters)}"
