"""Finds problems of a run: sentences with numbers, each with a link to the evidence. Pure.

Knows: names of metrics, counts of outcomes.  Knows not: files, HTTP.
Invariants: the text of a finding contains its numbers; a run of too few steps has no findings; worsening a problem
never removes its finding; what a run is meant to come to (rewards at their best, entropy that falls while they rise) is
no more than a note.
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
RISEN, SOLVED = 0.2, 0.9  # parts of the way from the first rewards to the best: more than noise; nearly all of it
FLAT_SHARE = 0.8  # share of sampled tokens: a run that learns from a fifth of its groups still progresses
GAP_GROWS, GAP_IS_LARGE = 3.0, 0.05  # factor on the initial gap, and nats a token
GAP_IS_WRONG = 0.3  # nats a token: more than rounding, or weights that are some steps old, make
FAILING_SHARE, HALF = 0.2, 0.5  # shares of the episodes
CLIPPED_SHARE, KL_IS_LARGE = 0.3, 0.1  # share of tokens, and nats a token: the policy moves too far in a step
SKIPPED_SHARE = 0.2  # share of the steps
STALE_SHARE = 0.1  # share of sampled tokens that are masked as too old
UNTRAINED_SHARE = 0.5  # share of sampled tokens with one of the masks below
WITHOUT_CREDIT_SHARE = 0.95  # an agent may well reward few of its turns, or one of several agents, but not none

UNWANTED = (
    *("no_credit", "rejected", "small_group", "truncated", "too_long", "kept_set", "no_baseline", "aborted"),
    *("cancelled", "lost"),
)
"""Reasons of masks that no algorithm means. Failures, old tokens and flat groups have findings of their own; an agent
or a filter of the user's means what it leaves out; `no_credit` may be meant of some tokens."""
FAILED = ("failed", "timeout")
"""Outcomes of episodes that failed."""

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
    failing: Sequence[Mapping[str, Any]] = ()
    """The failures among these episodes, as in `failures`."""
    failures: Sequence[Mapping[str, Any]] = ()
    """Failures of all training episodes, grouped by cause, the most frequent first: `outcome`, `count`, `reason`, and
    `first`, the id of the first episode."""
    forks: Mapping[str, int] = field(default_factory=dict)
    """Number of turns whose prompt forked, by reason."""
    best_reward: float | None = None
    """The highest reward of a training episode. None: no episode has one."""
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


def _way(observed: Observed) -> tuple[float, float, float] | None:
    """The reward at first and now, means over episodes, and which part of the way from the first to the best reward of
    an episode that is. None: rewards are not known, or were the best from the beginning."""
    values = [value for _, value in observed.points("rollout/reward")]
    if observed.best_reward is None or len(values) < FEW:
        return None
    first, now = min(values[:FEW]), median(values[-FEW:])
    whole = observed.best_reward - first
    return (first, now, (now - first) / whole) if whole > 0 else None


def _entropy(observed: Observed) -> Iterator[Finding]:
    ends = _ends(observed.points("train/entropy"))
    if ends is None or ends[0] <= 0 or ends[1] >= COLLAPSED * ends[0]:
        return
    fell, way = f"from {ends[0]:.3g} to {ends[1]:.3g} nats a token", _way(observed)
    severity: Severity = "warn"  # where a teacher is learned from it may well be meant
    text = f"Entropy has collapsed: {fell}; answers are nearly all alike"
    if way is not None and way[2] >= RISEN:
        severity = "info"
        text = (
            f"Entropy has fallen {fell}, while the reward rose from {way[0]:.3g} to {way[1]:.3g}: the model has "
            "settled on how it answers, and goes on learning while the members of groups still differ"
        )
    elif way is not None:
        severity = "bad"
        text += f", and the reward did not rise with it ({way[0]:.3g} at first, {way[1]:.3g} now)"
    yield Finding("entropy_collapsed", severity, text, _curves(observed, "train/entropy", "rollout/reward"))


def _share(observed: Observed, *names: str) -> tuple[int, float] | None:
    """The last step, and the share of the tokens sampled in the last `FEW` steps that these metrics count. None: there
    are too few steps."""
    sampled = dict(observed.points("ledger/sampled"))
    last = sorted(sampled)[-FEW:]
    total = sum(sampled[step] for step in last)
    if len(last) < FEW or not total:
        return None
    values = [dict(observed.points(name)) for name in names]
    counted = sum(of_step.get(step, 0.0) for of_step in values for step in last)
    return last[-1], counted / total


def _flat(observed: Observed) -> Iterator[Finding]:
    # where something else than the advantage trains too, such as a KL term, flat groups are not masked
    found = _share(observed, "ledger/masked_zero_advantage", "batch/zero_advantage_tokens")
    if found is None or found[1] < FLAT_SHARE:
        return
    step, share = found
    alike = f"in the last {FEW} steps {share:.0%} of the tokens were in groups whose members all got the same reward"
    way = _way(observed)
    if way is not None and way[2] >= SOLVED:
        text = (
            f"Hardly anything is left to learn from these rows: {alike}, on average {way[1]:.3g}, which is about the "
            f"best that an episode has got ({observed.best_reward:.3g})"
        )
        yield Finding("reward_flat", "info", text, f"{_run(observed)}/step/{step}")
        return
    text = f"Rewards are flat: {alike}, and teach nothing; other rows, more samples a group or a finer reward would"
    yield Finding("reward_flat", "bad", text, f"{_run(observed)}/step/{step}")


def _gap(observed: Observed) -> Iterator[Finding]:
    ends = _ends(observed.points("train/logprob_gap_mean"))
    if ends is None:
        return
    evidence = _curves(observed, "train/logprob_gap_mean", "staleness/mean_versions")
    if ends[1] >= GAP_IS_LARGE and ends[1] >= GAP_GROWS * ends[0]:
        text = (
            f"Sampler and trainer drift apart: the mean gap of a token's logprob grew from {ends[0]:.3g} to "
            f"{ends[1]:.3g} nats"
        )
        yield Finding("gap_growing", "warn", text, evidence)
    elif ends[1] >= GAP_IS_WRONG:
        text = (
            f"Sampler and trainer disagree: the mean gap of a token's logprob is {ends[1]:.3g} nats, and was "
            f"{ends[0]:.3g} at first; see that both have the same weights, temperature and chat template"
        )
        yield Finding("gap_large", "warn", text, evidence)


def _failing(observed: Observed) -> Iterator[Finding]:
    total = sum(observed.outcomes.values())
    bad = {kind: count for kind, count in observed.outcomes.items() if kind in FAILED}
    share = sum(bad.values()) / total if total else 0.0
    if total >= FEW and share >= FAILING_SHARE:
        kind = max(bad, key=lambda each: bad[each])
        why = next((each["reason"] for each in observed.failing if each["outcome"] == kind), "")
        because = f", most often: {why}" if why else ""
        text = f"{share:.0%} of the last {total} episodes ended as {' or '.join(sorted(bad))}{because}"
        yield Finding("failing", "bad" if share >= HALF else "warn", text, _episodes(observed, outcome=kind, eval=0))


def _failing_evaluation(observed: Observed) -> Iterator[Finding]:
    played, failed = observed.points("eval/episodes"), dict(observed.points("eval/failed_episodes"))
    for step, total in played[-1:]:
        share = failed.get(step, 0.0) / total if total else 0.0
        if total >= FEW and share >= FAILING_SHARE:
            text = (
                f"{share:.0%} of the {total:.0f} episodes of the evaluation at step {step} failed or were rejected; "
                "its mean reward is of those that have one"
            )
            severity: Severity = "bad" if share >= HALF else "warn"
            yield Finding("failing_evaluation", severity, text, _episodes(observed, step=step, eval=1))


def _ended_badly(observed: Observed) -> Iterator[Finding]:
    for each in observed.failures[:_MOST_NAMED]:
        text = f"{each['count']:,} x {each['outcome']}: {each['reason']}"
        yield Finding("ended_badly", "info", text, f"{_run(observed)}/episode/{quote(each['first'], safe='')}")


def _forked(observed: Observed) -> Iterator[Finding]:
    for reason, num_turns in [*observed.forks.items()][:_MOST_NAMED]:
        text = f"{num_turns:,} turns did not extend the tokens before them: {reason.replace('_', ' ')}"
        yield Finding("forked", "info", text, _curves(observed, f"rollout/fork_{reason}_turns", "rollout/forked_share"))


def _rate(observed: Observed) -> Iterator[Finding]:
    ages = [value for _, value in observed.points("staleness/mean_versions")[-FEW:]]
    old = f", or the tokens too old ({fmean(ages):.2g} versions)" if ages and fmean(ages) >= 1 else ""
    for name, limit, says in (
        ("train/clip_fraction", CLIPPED_SHARE, "of the tokens have their ratio clipped"),
        ("train/kl", KL_IS_LARGE, "nats a token lie between the policy and the one that sampled"),
    ):
        last = [value for _, value in observed.points(name)[-FEW:]]
        if len(last) == FEW and fmean(last) >= limit:
            number = f"{fmean(last):.0%}" if name.endswith("fraction") else f"{fmean(last):.3g}"
            text = f"The learning rate may be too high{old}: over the last {FEW} steps {number} {says}"
            yield Finding("lr_too_high", "warn", text, _curves(observed, name, "train/lr", "train/grad_norm"))


def _skipped(observed: Observed) -> Iterator[Finding]:
    # only steps that were skipped, wholly or in part, have the metric
    known = {step for step, value in observed.points("train/skipped_steps") if value > 0}
    last = [step for step, _ in observed.points("ledger/sampled")[-2 * FEW :]]
    skipped = sum(step in known for step in last)
    if len(last) == 2 * FEW and skipped >= SKIPPED_SHARE * len(last):
        text = (
            f"{skipped} of the last {len(last)} steps changed nothing, or less than they should: a gradient was no "
            "number, or nothing could be trained"
        )
        evidence = _curves(observed, "train/skipped_steps", "train/grad_norm", "ledger/trained")
        yield Finding("skipped", "warn", text, evidence)


def _untrained(observed: Observed) -> Iterator[Finding]:
    shares = {reason: found[1] for reason in UNWANTED if (found := _share(observed, f"ledger/masked_{reason}"))}
    if shares.get("no_credit", 0.0) < WITHOUT_CREDIT_SHARE:
        shares.pop("no_credit", None)
    whole = sum(shares.values())
    if whole >= UNTRAINED_SHARE:
        most = max(shares, key=lambda each: shares[each])
        text = (
            f"{whole:.0%} of the tokens of the last {FEW} steps were not trained, most of them as "
            f"“{most.replace('_', ' ')}” ({shares[most]:.0%})"
        )
        severity: Severity = "bad" if whole >= FLAT_SHARE else "warn"
        yield Finding("untrained", severity, text, _curves(observed, f"ledger/masked_{most}", "ledger/trained"))


def _stale(observed: Observed) -> Iterator[Finding]:
    found = _share(observed, "ledger/masked_stale")
    if found is not None and found[1] >= STALE_SHARE:
        text = f"{found[1]:.0%} of the tokens of the last {FEW} steps were too old to be trained"
        yield Finding("stale", "warn", text, _curves(observed, "ledger/masked_stale", "staleness/max_versions"))


def _broken_off(observed: Observed) -> Iterator[Finding]:
    if observed.state == "interrupted":
        text = "The run was broken off; --resume goes on from its last checkpoint"
        yield Finding("interrupted", "info", text, _curves(observed, "rollout/reward"))


_CHECKS = (
    *(_entropy, _flat, _gap, _failing, _failing_evaluation, _ended_badly, _forked, _rate, _skipped, _untrained),
    *(_stale, _broken_off),
)


def _run(observed: Observed) -> str:
    return f"#/run/{quote(observed.run_id, safe='')}"


def _curves(observed: Observed, *names: str) -> str:
    return f"{_run(observed)}?{urlencode({'m': ','.join(names)}, safe=',/')}"


def _episodes(observed: Observed, **filters: Any) -> str:
    return f"{_run(observed)}/episodes?{urlencode(filters)}"
