"""Evaluation: plays the held-out rows with the current weights and computes their mean results.

Knows: rows, episodes, means.  Knows not: training, agents, engines.
Invariant: the same rows get the same seeds whenever they are played, so two evaluations differ by the weights alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from ludus.episodes.ledger import Ledger
from ludus.errors import UserError
from ludus.processes.gather import gather
from ludus.rollout.mixture import Source, derive_seed
from ludus.rollout.pool import PlayEpisode
from ludus.rollout.tasks import EpisodeTask
from ludus.runs.metrics import merge_means
from ludus.types import Episode


@dataclass(frozen=True, slots=True)
class EvalPlan:
    """What an evaluation plays."""

    sources: Sequence[Source]
    n_samples: int
    seed: int
    max_concurrent: int


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The episodes of one evaluation, ordered by row and sample, and their means.

    An episode that was lost with its process was played again with the same seed; the lost one is only in the ledger.
    """

    episodes: tuple[Episode, ...]
    metrics: dict[str, float]
    ledger: Ledger


async def evaluate(
    play: PlayEpisode, plan: EvalPlan, *, step: int, on_episode: Callable[[Episode], object] = lambda _: None
) -> Evaluation:
    """Play every row `n_samples` times.

    on_episode: called with every episode as it ends, lost and cancelled ones included.
    Raises UserError if every episode failed, and the first error that `play` raises.
    """
    played: list[Episode] = []

    async def play_one(place: tuple[Source, int, int]) -> Episode:
        for attempt in itertools.count():
            episode = await play(_task(plan, step, *place, attempt))
            played.append(episode)
            on_episode(episode)
            if episode.outcome.kind != "lost":
                return episode
        raise AssertionError("attempts do not end")

    places = [
        (source, row_idx, sample_idx)
        for source in plan.sources
        for row_idx in range(len(source.rows))
        for sample_idx in range(plan.n_samples)
    ]
    episodes = tuple(await gather(play_one, places, at_once=plan.max_concurrent))
    failed = [episode for episode in episodes if episode.outcome.kind in ("failed", "timeout")]
    if len(failed) == len(episodes):
        first = failed[0]
        raise UserError(f"all {len(episodes)} episodes of the evaluation failed; the first: {first.outcome.reason}")
    metrics = eval_metrics(episodes)
    for source in plan.sources:
        if source.name:
            own = [each for each, place in zip(episodes, places, strict=True) if place[0].name == source.name]
            metrics.update({f"{name}/{source.name}": value for name, value in eval_metrics(own).items()})
    return Evaluation(episodes, metrics, account_evaluated(played))


def account_evaluated(episodes: Sequence[Episode]) -> Ledger:
    """The ledger of the tokens that evaluations sampled."""
    return Ledger.all_masked(sum(episode.session.num_sampled_tokens for episode in episodes), "evaluation")


def eval_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """Means over episodes. There is `eval/success` if any episode reports it; those that do not count as 0."""
    rewards = [episode.reward for episode in episodes if episode.reward is not None]
    metrics = {f"eval/{name}": value for name, value in merge_means(each.metrics for each in episodes).items()}
    metrics["eval/episodes"] = float(len(episodes))
    if rewards:
        metrics["eval/reward"] = fmean(rewards)
    if any("success" in episode.metrics for episode in episodes):
        metrics["eval/success"] = fmean(episode.metrics.get("success", 0.0) for episode in episodes)
    metrics["eval/turns"] = fmean(len(episode.session.turns) for episode in episodes)
    metrics["eval/failed_episodes"] = float(sum(not episode.outcome.has_credit for episode in episodes))
    return metrics


def _task(plan: EvalPlan, step: int, source: Source, row_idx: int, sample_idx: int, attempt: int) -> EpisodeTask:
    own = [source.name] if source.name else []
    group_id = "-".join((f"e{step:06d}", *own, f"row{row_idx:05d}"))
    return EpisodeTask(
        episode_id=f"{group_id}-m{sample_idx:02d}" + (f"-r{attempt}" if attempt else ""),
        group_id=group_id,
        task_id=f"eval-{source.row_name(row_idx)}",
        data=source.rows[row_idx],
        seed=derive_seed(plan.seed, "eval", *own, row_idx, sample_idx),
        step=step,
        is_eval=True,
        source=source.name,
    )
