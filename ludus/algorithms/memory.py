"""Coefficients that follow what was seen: which a batch is trained with, and how they move after it.

Knows: settings, what is remembered, metrics of a batch.  Knows not: who keeps it, tensors.
"""

from __future__ import annotations

from collections.abc import Mapping

from ludus.algorithms.base import Memory
from ludus.algorithms.settings import AlgorithmSettings, EntropySettings

_COEF, _SEEN = "entropy/coef", "entropy/seen"


def adapted(settings: AlgorithmSettings, memory: Memory) -> AlgorithmSettings | None:
    """The settings that the next batch is trained with. None: they are as they stand.

    The entropy counts only while it is not above its target; before any was seen, it does not.
    Source: Skywork-OR1 (arXiv 2505.22312) sec. 4; of the batch before, as TRL takes it.
    """
    entropy = settings.entropy
    if entropy is None or entropy.target is None:
        return None
    acts = _SEEN in memory and memory[_SEEN] <= entropy.target
    coef = memory.get(_COEF, entropy.coef) if acts else 0.0
    return settings.model_copy(update={"entropy": EntropySettings(coef=coef) if coef > 0 else None})


def remember(settings: AlgorithmSettings, memory: Memory, metrics: Mapping[str, float]) -> Memory:
    """What is known after a batch of which this was seen: the coefficient moves towards what the target asks for."""
    entropy, seen = settings.entropy, metrics.get("train/entropy")
    if entropy is None or entropy.target is None or seen is None:
        return memory
    change = entropy.delta if seen <= entropy.target else -entropy.delta
    coef = min(max(memory.get(_COEF, entropy.coef) + change, entropy.min), entropy.max)
    return {**memory, _COEF: coef, _SEEN: seen}
