"""The divergence that is taken off rewards: its numbers by hand, and the coefficient that follows it."""

from __future__ import annotations

import math

import pytest

from ludus.algorithms.measured import TokenNumbers
from ludus.algorithms.memory import remember_reward_kl, reward_kl_coef
from ludus.algorithms.metrics import KlEstimator
from ludus.algorithms.reward_kl import RewardKl, RewardKlSettings, reward_kl
from ludus.algorithms.settings import AlgorithmSettings
from ludus.errors import ConfigError
from ludus.types import Episode, Message, Outcome, Sampled, Sampling, SessionRecord, Turn


def episode(name: str, *turns: str) -> Episode:
    sampled = Sampled((1,), (-1.0,), (0,), "stop")
    of_session = (Turn(each, 0, None, None, None, (), Message("assistant", ""), sampled, Sampling()) for each in turns)
    return Episode(name, "row", "g", SessionRecord(name, (), tuple(of_session)), {}, Outcome("ok"))


def numbers(*pairs: tuple[float, float]) -> TokenNumbers:
    mu, ref = zip(*pairs, strict=True)
    return TokenNumbers(sampled_logprobs=mu, reference_logprobs=ref)


def test_the_mean_is_of_episodes() -> None:
    """Nats of a token, as the mean over an episode's tokens; episodes of which nothing was measured do not count."""
    measured = {"a": numbers((-1.0, -1.5), (-2.0, -1.0)), "b": numbers((-1.0, -2.0)), "c": numbers((-1.0, -1.25))}
    lost = reward_kl([episode("m", "a", "b"), episode("n", "c"), episode("o", "d")], measured, estimator="k1", coef=0.5)
    assert lost is not None
    assert lost.penalties == {"a": (0.25, -0.5), "b": (0.5,), "c": (0.125,)}
    assert (lost.mean, lost.num_episodes, lost.coef) == (pytest.approx(((0.5 - 1.0 + 1.0) / 3 + 0.25) / 2), 2, 0.5)
    assert reward_kl([episode("o", "d")], {}, estimator="k1", coef=0.5) is None


@pytest.mark.parametrize(
    ("estimator", "of_half", "of_far"),
    [("k1", 0.5, -10.0), ("k2", 0.125, 10.0), ("k3", math.exp(-0.5) - 0.5, 10.0), ("abs", 0.5, 10.0)],
)
def test_estimates_are_bounded(estimator: KlEstimator, of_half: float, of_far: float) -> None:
    """log mu - log ref of 0.5, and of -50: a broken token drowns no reward."""
    lost = reward_kl([episode("m", "a")], {"a": numbers((-1.0, -1.5), (-51.0, -1.0))}, estimator=estimator, coef=1.0)
    assert lost is not None and lost.penalties["a"] == pytest.approx((of_half, of_far))


def test_the_coefficient_follows_the_target() -> None:
    """Ziegler et al. sec. 2.2, as verl's AdaptiveKLController(0.2, target 0.1, horizon 100) with 10 episodes: times
    1 + 10 clip(KL / 0.1 - 1, -0.2, 0.2) / 100; without a target it stays."""
    settings, memory = RewardKlSettings(coef=0.2, target=0.1, horizon=100), {"rae/x": 1.0}
    seen = [reward_kl_coef(settings, memory)]
    for nats in (0.5, 0.11, 0.0):
        memory = {**remember_reward_kl(settings, memory, RewardKl({}, seen[-1], nats, 10))}
        seen.append(reward_kl_coef(settings, memory))
    assert seen == pytest.approx([0.2, 0.2 * 1.02, 0.2 * 1.02 * 1.01, 0.2 * 1.02 * 1.01 * 0.98])
    assert memory["rae/x"] == 1.0
    fixed = RewardKlSettings(coef=0.3)
    assert remember_reward_kl(fixed, {}, RewardKl({}, 0.3, 9.0, 10)) == {} and reward_kl_coef(fixed, memory) == 0.3


def test_keys_that_cannot_act_are_named() -> None:
    """A horizon without a target; advantages that are not made of the reward."""
    assert [each.key for each in RewardKlSettings(coef=0.1, horizon=10).idle()] == ["horizon"]
    for advantage in ("none", {"kind": "gdpo", "rewards": {"right": 1.0}}):
        for key, settings in (("reward_kl", {"coef": 0.1}), ("overlong", {"tokens": 4})):
            with pytest.raises(
                ConfigError, match=rf"{key} is taken off the reward, and advantage '(none|gdpo)' is not"
            ):
                AlgorithmSettings(**{key: settings, "advantage": advantage})


@pytest.mark.parametrize(("key", "settings"), [("reward_kl", {"coef": 0.1}), ("overlong", {"tokens": 4})])
def test_what_divides_by_a_mean_of_rewards_is_refused_beside_it(key: str, settings: object) -> None:
    """A reward of 0 less something is negative: that is said at the start, not when the first failed answer is long."""
    with pytest.raises(ConfigError, match=f"{key} is taken off the reward, which then may be negative"):
        AlgorithmSettings(**{"name": "maxrl", key: settings})
