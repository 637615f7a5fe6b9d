"""What a step is measured by: times, rewards, staleness, the ledger, tokens a second, memory.

Knows: clocks, episodes, counters.  Knows not: where metrics go.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import fmean, pstdev, pvariance
from time import perf_counter

from ludus.algorithms.measured import Measured
from ludus.algorithms.pack import Batch
from ludus.algorithms.reward_kl import RewardKl
from ludus.episodes.ledger import Ledger
from ludus.loop.batch import BuiltBatch
from ludus.loop.memory import card_mb, peak_rss_mb, rss_mb
from ludus.rollout.groups import TakenGroups, token_versions
from ludus.runs.metrics import Metrics, merge_means
from ludus.types import EngineStats, Group


class TrainingClock:
    """Wall time of training with evaluations left out, and where each step's time and tokens went."""

    def __init__(self, counters: EngineStats, train_seconds: float = 0.0, eval_seconds: float = 0.0) -> None:
        """train_seconds, eval_seconds: spent before a resume."""
        self.eval_seconds = eval_seconds
        self.last_eval_s = 0.0
        self.last_step_s = 0.0
        self._parts_s: dict[str, float] = {}
        self._counters = counters
        self._started_at = perf_counter() - train_seconds - eval_seconds
        self._step_began_s = train_seconds

    @property
    def train_seconds(self) -> float:
        return perf_counter() - self._started_at - self.eval_seconds

    @contextmanager
    def measure(self, part: str) -> Iterator[None]:
        """Count the block's seconds towards a part of this step."""
        started_at = perf_counter()
        try:
            yield
        finally:
            self._parts_s[part] = self._parts_s.get(part, 0.0) + perf_counter() - started_at

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Count the block's seconds as evaluation, not as training."""
        started_at = perf_counter()
        try:
            yield
        finally:
            self.last_eval_s = perf_counter() - started_at
            self.eval_seconds += self.last_eval_s

    def rebase(self, counters: EngineStats) -> None:
        """Leave out of the next step's figures what the engine has done until now."""
        self._counters = counters

    def end_step(self, counters: EngineStats, *, num_row_tokens: int) -> dict[str, float]:
        """Times and speeds since the last step ended. Begins a new step."""
        now_s = self.train_seconds
        self.last_step_s = now_s - self._step_began_s
        times = {f"time/{part}_s": seconds for part, seconds in self._parts_s.items()}
        speeds = speed_metrics(
            self._counters,
            counters,
            rollout_s=self._parts_s.get("rollout", 0.0),
            step_s=self.last_step_s,
            train_s=self._parts_s.get("train", 0.0),
            num_row_tokens=num_row_tokens,
        )
        self._parts_s, self._step_began_s, self._counters = {}, now_s, counters
        return {"time/step_s": self.last_step_s, "time/train_total_s": now_s, **times, **speeds}


def rollout_metrics(taken: TakenGroups) -> dict[str, float]:
    """Rewards, success and what agents report, over the episodes trained on; outcomes over all."""
    played = [episode for group in taken.groups for episode in group.episodes]
    episodes = [episode for episode in played if not episode.is_greedy] or played
    discarded = Counter(item.mask for item in taken.discarded)
    metrics = {
        "rollout/groups": float(len(taken.groups)),
        "rollout/episodes": float(len(played)),
        "rollout/discarded_episodes": float(len(taken.discarded)),
    }
    compared_with = [each.reward for each in played if each.is_greedy and each.reward is not None]
    if compared_with:
        metrics["rollout/greedy_reward"] = fmean(compared_with)
    if episodes:
        rewards = [episode.reward for episode in episodes if episode.reward is not None]
        if rewards:
            metrics["rollout/reward"] = fmean(rewards)
            metrics["rollout/reward_std"] = pstdev(rewards)
        metrics["rollout/turns"] = fmean(len(episode.session.turns) for episode in episodes)
        metrics["rollout/tokens"] = fmean(episode.session.num_sampled_tokens for episode in episodes)
        forks = Counter(turn.fork for episode in episodes for turn in episode.session.turns if turn.fork is not None)
        metrics.update({f"rollout/fork_{reason}_turns": float(count) for reason, count in sorted(forks.items())})
        if forks:
            metrics["rollout/forked_share"] = forks.total() / sum(len(episode.session.turns) for episode in episodes)
        num_undecoded = sum(len(turn.undecoded) for episode in episodes for turn in episode.session.turns)
        if num_undecoded:
            metrics["rollout/undecoded_calls"] = float(num_undecoded)
        metrics["rollout/truncated_share"] = fmean(episode.outcome.kind == "truncated" for episode in episodes)
    reported = merge_means(episode.metrics for episode in episodes)
    # what we measure keeps its name: an agent may report a reward of its own
    metrics = {f"rollout/{name}": value for name, value in reported.items()} | metrics
    metrics.update({f"rollout/discarded_{mask}_episodes": float(count) for mask, count in sorted(discarded.items())})
    metrics.update({f"data/skipped_{why}": float(count) for why, count in taken.skipped.items()})
    return metrics | _source_metrics(taken.groups)


def replay_metrics(taken: TakenGroups, trained: Metrics, *, version: int) -> dict[str, float]:
    """Number of replayed groups, the age of their tokens in versions, the mean of their importance weights w, and
    their effective sample size as a share of their tokens, (mean w)^2 / mean w^2. Empty if nothing was replayed.

    trained: the trainer's metrics.  Source: Kish, "Survey Sampling" (1965), sec. 8.2.
    """
    if not taken.replayed:
        return {}
    ages = [version - sampled_by for group in taken.replayed for sampled_by in token_versions(group)]
    metrics = {"replay/groups": float(len(taken.replayed))}
    if ages:
        metrics |= {"replay/age_versions": fmean(ages), "replay/age_versions_max": float(max(ages))}
    if share := trained.get("train/replay_share"):
        weight, squared = trained["train/replay_weight"], trained["train/replay_weight_squared"]
        metrics |= {"replay/weight": weight / share, "replay/ess": weight**2 / (share * squared)}
    return metrics


def demonstration_metrics(trained: Metrics) -> dict[str, float]:
    """The policy's mean probability of the demonstrations' tokens. Empty if there are no demonstrations.

    trained: the trainer's metrics.
    """
    share = trained.get("train/demonstration_share")
    return {"demonstrations/probability": trained["train/demonstration_probability"] / share} if share else {}


def _source_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """For each dataset by name: its share of the groups, and means over its episodes. Empty if there is only one."""
    metrics: dict[str, float] = {}
    for name in sorted({group.source for group in groups if group.source}):
        own = [group for group in groups if group.source == name]
        played = [episode for group in own for episode in group.episodes]
        episodes = [episode for episode in played if not episode.is_greedy] or played
        rewards = [episode.reward for episode in episodes if episode.reward is not None]
        means = {
            **merge_means(episode.metrics for episode in episodes),
            "share": len(own) / len(groups),
            "turns": fmean(len(episode.session.turns) for episode in episodes),
            "tokens": fmean(episode.session.num_sampled_tokens for episode in episodes),
            "truncated_share": fmean(episode.outcome.kind == "truncated" for episode in episodes),
            **({"reward": fmean(rewards)} if rewards else {}),
        }
        metrics.update({f"rollout/{metric}/{name}": value for metric, value in means.items()})
    return metrics


def ledger_metrics(ledger: Ledger) -> dict[str, float]:
    masked = {f"ledger/masked_{reason}": float(count) for reason, count in sorted(ledger.masked.items())}
    beside = {"ledger/replayed": ledger.replayed, "ledger/demonstrated": ledger.demonstrated}
    counted = {name: float(count) for name, count in beside.items() if count}
    return {"ledger/sampled": float(ledger.sampled), "ledger/trained": float(ledger.trained), **masked, **counted}


def batch_metrics(built: BuiltBatch, *, has_advantages: bool = True) -> dict[str, float]:
    """Size and sharing of the batch, and its histogram of staleness.

    has_advantages: the algorithm computes advantages; otherwise that all are 0 means nothing.
    """
    batch, ages = built.batch, built.staleness
    total = sum(ages.values())
    metrics = {
        "batch/rows": float(len(batch.rows)),
        "batch/row_tokens": float(batch.num_row_tokens),
        "batch/sequence_tokens": float(batch.num_sequence_tokens),
        "batch/trained_tokens": float(batch.num_trained),
    }
    # where something else than the advantage trains too, such as a KL term, flat groups are not masked
    flat = sum(len(places) for turn, places in built.turns.values() if built.credit.get(turn) == 0.0)
    if has_advantages and flat:
        metrics["batch/zero_advantage_tokens"] = float(flat)
    metrics |= _value_metrics(batch) | _reward_kl_metrics(built.reward_kl)
    if total:
        metrics["staleness/mean_versions"] = sum(age * count for age, count in ages.items()) / total
        metrics["staleness/max_versions"] = float(max(ages))
        metrics.update({f"staleness/tokens_{age}": float(count) for age, count in ages.items()})
    return metrics


def _reward_kl_metrics(lost: RewardKl | None) -> dict[str, float]:
    """The KL penalty subtracted from an episode's reward (mean), the KL estimate of a token in nats, and the
    coefficient."""
    if lost is None:
        return {}
    whole = math.fsum(each for tokens in lost.penalties.values() for each in tokens)
    return {
        "reward_kl/penalty": whole / lost.num_episodes,
        "reward_kl/token_nats": lost.mean,
        "reward_kl/coef": lost.coef,
    }


def teacher_metrics(measured: Measured) -> dict[str, float]:
    """How far the policy is from its teacher: the mean over tokens of log policy - log teacher, which estimates
    KL(policy || teacher) of a token in nats. Empty without a teacher."""
    gaps = [gap for numbers in measured.values() for gap in numbers.teacher_gaps or ()]
    return {"teacher/kl": -fmean(gaps)} if gaps else {}


def _value_metrics(batch: Batch) -> dict[str, float]:
    """How much of the variance of the value targets the critic explained before this batch. Empty without a critic."""
    values = [value for row in batch.rows for value in row.values or ()]
    targets = [target for row in batch.rows for target in row.value_targets or ()]
    if not values:
        return {}
    metrics = {"critic/value": fmean(values), "critic/value_target": fmean(targets)}
    if spread := pvariance(targets):
        left = pvariance([target - value for value, target in zip(values, targets, strict=True)])
        metrics["critic/explained_variance"] = 1 - left / spread
    return metrics


def speed_metrics(
    before: EngineStats, after: EngineStats, *, rollout_s: float, step_s: float, train_s: float, num_row_tokens: int
) -> dict[str, float]:
    """Tokens a second of engine and trainer, and the engine's counters since the last step.

    step_s: how long the step took. Engines that were busy for longer than that in sum worked side by side; their rate
    is that of all of them together.
    """
    sampled = after.num_sampled_tokens - before.num_sampled_tokens
    busy_s = after.busy_s - before.busy_s
    metrics = {
        "engine/sampled_tokens": float(sampled),
        "engine/prefilled_tokens": float(after.num_prefilled_tokens - before.num_prefilled_tokens),
        "engine/cached_tokens": float(after.num_cached_tokens - before.num_cached_tokens),
        "engine/preemptions": float(after.num_preemptions - before.num_preemptions),
        "engine/free_pages": float(after.num_free_pages),
        "engine/busy_s": busy_s,
    }
    if sampled and (busy_s > 0 or rollout_s > 0):
        metrics["rollout/tokens_per_s"] = sampled / (min(busy_s, step_s) or rollout_s)
    if num_row_tokens and train_s > 0:
        metrics["train/tokens_per_s"] = num_row_tokens / train_s
    return metrics


def memory_metrics() -> dict[str, float]:
    metrics = {"memory/rss_mb": rss_mb(), "memory/peak_rss_mb": peak_rss_mb()}
    on_card = card_mb()
    return metrics if on_card is None else {**metrics, "memory/card_mb": on_card[0], "memory/peak_card_mb": on_card[1]}
