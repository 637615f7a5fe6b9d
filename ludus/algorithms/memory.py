"""Adaptive coefficients (entropy bonus, KL penalty): their value for the next batch, and how a batch changes them.

Knows: settings, the memory, metrics of a batch.  Knows not: who keeps the memory, tensors.
"""

from __future__ import annotations

from collections.abc import Mapping

from ludus.algorithms.base import Memory
from ludus.algorithms.reward_kl import RewardKl, RewardKlSettings
from ludus.algorithms.settings import AlgorithmSettings, EntropySettings

_COEF, _SEEN, _KL_COEF = "entropy/coef", "entropy/seen", "reward_kl/coef"


def adapted(settings: AlgorithmSettings, memory: Memory) -> AlgorithmSettings | None:
    """The settings with the entropy coefficient for the next batch. None: the settings need no change.

    The coefficient is 0 while the last batch's entropy was above the target, and before the first batch.
    Source: Skywork-OR1 (arXiv 2505.22312) sec. 4; with the entropy of the last batch, as in TRL.
    """
    entropy = settings.entropy
    if entropy is None or entropy.target is None:
        return None
    acts = _SEEN in memory and memory[_SEEN] <= entropy.target
    coef = memory.get(_COEF, entropy.coef) if acts else 0.0
    return settings.model_copy(update={"entropy": EntropySettings(coef=coef) if coef > 0 else None})


def remember(settings: AlgorithmSettings, memory: Memory, metrics: Mapping[str, float]) -> Memory:
    """The memory after a batch with these metrics: the entropy coefficient is raised or lowered towards the target, by
    the entropy of the tokens that have the bonus."""
    entropy = settings.entropy
    seen = metrics.get("train/entropy" if settings.top_entropy is None else "train/top_entropy")
    if entropy is None or entropy.target is None or seen is None:
        return memory
    change = entropy.delta if seen <= entropy.target else -entropy.delta
    coef = min(max(memory.get(_COEF, entropy.coef) + change, entropy.min), entropy.max)
    return {**memory, _COEF: coef, _SEEN: seen}


def reward_kl_coef(settings: RewardKlSettings, memory: Memory) -> float:
    """The KL penalty's coefficient for the next batch."""
    return settings.coef if settings.target is None else memory.get(_KL_COEF, settings.coef)


def remember_reward_kl(settings: RewardKlSettings, memory: Memory, seen: RewardKl) -> Memory:
    """The memory after a batch with this KL penalty; its coefficient becomes
    coef (1 + clip(KL / target - 1, -0.2, 0.2) n / horizon) for n episodes.

    Source: Ziegler et al. (arXiv 1909.08593) sec. 2.2; n counts episodes as in verl's `AdaptiveKLController`.
    """
    if settings.target is None:
        return memory
    error = min(max(seen.mean / settings.target - 1, -0.2), 0.2)
    return {**memory, _KL_COEF: seen.coef * (1 + error * seen.num_episodes / settings.horizon)}
