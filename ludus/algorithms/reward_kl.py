"""A KL penalty in the reward: the divergence from the initial weights, subtracted from the rewards token by token.

Knows: measured logprobs of tokens, episodes.  Knows not: how rewards become advantages, tensors.
Glossary: mu the policy that sampled, ref the initial weights of the training.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean

import pydantic

from ludus.algorithms.measured import Floats, Measured
from ludus.algorithms.metrics import KlEstimator, kl_of_token
from ludus.settings import Idle, Settings
from ludus.types import Episode

# An estimate beyond this is an outlier that must not dominate the rewards of a batch. Source: AReaL, OpenRLHF.
LARGEST_ESTIMATE = 10.0
MEASURED = frozenset({"sampled_logprobs", "reference_logprobs"})
"""The measurements that it needs."""


class RewardKlSettings(Settings):
    """A penalty in the reward on the KL divergence from the initial weights."""

    coef: float = pydantic.Field(gt=0)
    """The penalty of one nat; with a target, its initial value."""
    estimator: KlEstimator = "k1"
    """How the divergence is estimated from each token."""
    target: float | None = pydantic.Field(default=None, gt=0)
    """Desired nats per token: after each batch `coef` rises if there were more, else it falls. None: it is constant."""
    horizon: int = pydantic.Field(default=10000, ge=1)
    """Over so many episodes `coef` changes by at most 20 %."""

    def idle(self) -> list[Idle]:
        return [Idle("horizon", "target is not set")] if self.target is None and self.is_set("horizon") else []


@dataclass(frozen=True, slots=True)
class RewardKl:
    """The penalties of a batch."""

    penalties: Mapping[str, Floats]
    """By turn id: of each measured token, in order."""
    coef: float
    mean: float
    """Nats per token: the mean over episodes of the mean over their tokens."""
    num_episodes: int
    """Episodes with measured tokens."""


def reward_kl(
    episodes: Iterable[Episode], measured: Measured, *, estimator: KlEstimator, coef: float
) -> RewardKl | None:
    """coef times the estimate of KL(mu || ref) of each token, clipped to 10 nats. None: nothing was measured.

    Source: Ziegler et al. (arXiv 1909.08593) sec. 2.1; by token as verl's `apply_kl_penalty` and AReaL.
    """
    estimates: dict[str, Floats] = {}
    means: list[float] = []
    for episode in episodes:
        of_turns = {
            turn.id: _estimates(measured[turn.id].sampled_logprobs, measured[turn.id].reference_logprobs, estimator)
            for turn in episode.session.turns
            if turn.id in measured
        }
        if of_turns:
            estimates |= of_turns
            means.append(fmean(each for tokens in of_turns.values() for each in tokens))
    if not means:
        return None
    penalties = {turn_id: tuple(coef * each for each in tokens) for turn_id, tokens in estimates.items()}
    return RewardKl(penalties, coef, fmean(means), len(means))


def _estimates(sampled: Floats | None, reference: Floats | None, estimator: KlEstimator) -> Floats:
    assert sampled is not None and reference is not None, "an algorithm that needs a reference gets its logprobs"
    found = (kl_of_token(mu - ref, estimator) for mu, ref in zip(sampled, reference, strict=True))
    return tuple(max(min(each, LARGEST_ESTIMATE), -LARGEST_ESTIMATE) for each in found)
