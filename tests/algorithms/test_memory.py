"""The weight of the entropy that follows the entropy seen."""

import pytest

from ludus.algorithms.base import NOTHING, Memory
from ludus.algorithms.memory import adapted, remember
from ludus.algorithms.settings import AlgorithmSettings
from ludus.errors import ConfigError

ADAPTIVE = AlgorithmSettings(entropy={"coef": 0.01, "target": 0.5, "delta": 0.02, "max": 0.04})


def test_the_weight_follows_the_entropy() -> None:
    """Skywork-OR1 as TRL has it: + delta where the entropy is at most the target, else - delta, within bounds; it acts
    after a batch whose entropy was not above the target."""
    memory: Memory = NOTHING
    seen, acted = [], []
    for entropy in (0.6, 0.5, 0.4, 0.3, 0.9, 0.8, 0.7, 0.2):
        settings = adapted(ADAPTIVE, memory)
        assert settings is not None
        acted.append(0.0 if settings.entropy is None else settings.entropy.coef)
        memory = remember(ADAPTIVE, memory, {"train/entropy": entropy})
        seen.append(memory["entropy/coef"])
    assert seen == pytest.approx([0.0, 0.02, 0.04, 0.04, 0.02, 0.0, 0.0, 0.02])
    assert acted == pytest.approx([0.0, 0.0, 0.02, 0.04, 0.04, 0.0, 0.0, 0.0])


def test_where_tokens_of_high_entropy_are_trained_it_follows_theirs() -> None:
    """As in TRL: of the tokens that have the bonus."""
    settings = ADAPTIVE.model_copy(update={"top_entropy": 0.2})
    memory = remember(settings, {}, {"train/entropy": 0.4, "train/top_entropy": 0.6})
    assert memory == {"entropy/coef": 0.0, "entropy/seen": 0.6}
    assert remember(settings, {}, {"train/entropy": 0.4}) == {}


def test_other_processes_are_told_the_same() -> None:
    """Settings of a batch are equal after their way to other ranks."""
    for entropy in (0.4, 0.9):
        settings = adapted(ADAPTIVE, {"entropy/coef": 0.03, "entropy/seen": entropy})
        assert settings is not None
        assert AlgorithmSettings(**settings.model_dump(mode="json", exclude_unset=True)) == settings


def test_without_a_target_nothing_moves() -> None:
    """Nor is anything remembered of a batch in which nothing was trained."""
    fixed = AlgorithmSettings(entropy={"coef": 0.01})
    assert adapted(fixed, {}) is None and remember(fixed, {}, {"train/entropy": 1.0}) == {}
    assert remember(ADAPTIVE, {}, {"train/skipped_steps": 1.0}) == {}


def test_keys_that_cannot_be() -> None:
    """A weight of 0 that stays, one that lies outside its bounds; bounds without a target do not act."""
    with pytest.raises(ConfigError, match=r"entropy\.coef must be above 0, or entropy\.target given"):
        AlgorithmSettings(entropy={"coef": 0.0})
    with pytest.raises(ConfigError, match=r"entropy\.coef=2 must lie between min=0 and max=1"):
        AlgorithmSettings(entropy={"coef": 2.0, "target": 0.5})
    entropy = AlgorithmSettings(entropy={"coef": 0.1, "max": 0.5}).entropy
    assert entropy is not None and [each.key for each in entropy.idle()] == ["max"]
