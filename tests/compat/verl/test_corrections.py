"""verl's rollout correction as corrections of ours; tests/oracles compares their numbers, of each of verl's presets."""

from typing import Any

import pytest

from ludus.algorithms import AlgorithmSettings
from ludus.compat.config import load_config
from ludus.compat.keys import meaning_of
from ludus.compat.verl.keys import KEYS

KEY = "algorithm.rollout_correction."
Keys = dict[str, Any]
NOT_COUNTED: Keys = {"counted": False}
ONCE: Keys = {"kind": "mask", "weighs": False, **NOT_COUNTED}
EPISODE: Keys = {"level": "episode"}
GEOMETRIC: Keys = {"level": "episode", "mean": "geometric"}
NEAR: Keys = {"low": 1 / 1.001, "high": 1 / 0.999}
BY_RATIO: Keys = {"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": "0.999_1.001"}
BY_K3: Keys = {"rollout_rs": "seq_mean_k3", "rollout_rs_threshold": 0.01}
K3: Keys = {"kind": "divergence", "level": "episode", "high": 0.01}
REINFORCED: Keys = {"bypass_mode": True, "loss_type": "reinforce"}


def algorithm_of(asked: dict[str, Any], *more: str) -> AlgorithmSettings:
    keys = [f"{KEY}{name}={value!r}" for name, value in asked.items()]
    return load_config(None, [*keys, *more, "algorithm.minibatches=2"]).algorithm


@pytest.mark.parametrize(
    ("asked", "ours"),
    [
        (BY_RATIO, {**ONCE, **NEAR, **GEOMETRIC}),
        ({**BY_RATIO, "rollout_is": "token"}, [{"cap": 2.0}, {**ONCE, **NEAR, **GEOMETRIC}]),
        (
            {**BY_RATIO, "rollout_is": "sequence", "rollout_is_threshold": 3.0},
            [{"cap": 3.0, **EPISODE}, {**ONCE, **NEAR, **GEOMETRIC}],
        ),
        (BY_K3, {**K3, **NOT_COUNTED}),
        ({**BY_K3, "rollout_is": "token"}, [{"cap": 2.0}, {**K3, **NOT_COUNTED}]),
        (
            {"rollout_is": "sequence", "rollout_rs": "seq_sum_k1", "rollout_rs_threshold": "0.5_2.0"},
            [{"cap": 2.0, **EPISODE}, {**ONCE, "low": 0.5, "high": 2.0, **EPISODE}],
        ),
        (
            {"rollout_rs": "token_k1, seq_max_k2,token_k1", "rollout_rs_threshold": "0.8_1.25,0.1"},
            [
                {**ONCE, "low": 0.8, "high": 1.25},
                {"kind": "divergence", "estimator": "k2", "combine": "max", "high": 0.1, **EPISODE, **NOT_COUNTED},
            ],
        ),
        (
            {"rollout_rs": "token_k2,token_k3", "rollout_rs_threshold": 0.1},
            [{"kind": "divergence", "estimator": each, "high": 0.1, **NOT_COUNTED} for each in ("k2", "k3")],
        ),
        ({"rollout_rs": "token_k1", "rollout_rs_threshold": 2.0}, {**ONCE, "low": 0.5, "high": 2.0}),
        # by the names that they had before, where they are of pi / mu
        (
            {"rollout_rs": "geometric", "rollout_rs_threshold": 4, "rollout_rs_threshold_lower": 0.5},
            {**ONCE, "low": 0.5, "high": 4.0, **GEOMETRIC},
        ),
    ],
)
def test_what_is_rejected_leaves_the_denominators(asked: dict[str, Any], ours: Any) -> None:
    """Bounds of mu / pi are the inverse ones here; weights and rejections are each of a measure of their own."""
    assert algorithm_of(asked) == AlgorithmSettings(minibatches=2, correction=ours)


@pytest.mark.parametrize(
    ("asked", "ours"),
    [
        (
            {"bypass_mode": True, "rollout_is": "token", **BY_RATIO},
            {"correction": ["bypass", {**ONCE, **NEAR, **GEOMETRIC, "counted": True}]},
        ),
        ({"bypass_mode": True, **BY_K3}, {"correction": ["bypass", K3]}),
        ({**REINFORCED, **BY_K3}, {"correction": ["bypass", K3], "loss": "policy_gradient"}),
        (
            {**REINFORCED, **BY_K3, "rollout_is": "sequence"},
            {"correction": [{"cap": 2.0, **EPISODE}, K3], "loss": "policy_gradient", "proximal": "reuse"},
        ),
    ],
)
def test_with_bypass_the_trained_policy_is_compared_and_every_token_counts(asked: Any, ours: Any) -> None:
    """verl's loss rejects there and not its trainer, and clipped ratios need no weight."""
    assert algorithm_of(asked) == AlgorithmSettings(minibatches=2, **ours)


@pytest.mark.parametrize(
    ("beside", "said"),
    [
        ({"algorithm.adv_estimator": "gae"}, "advantages are of all tokens; verl leaves those out"),
        ({"algorithm.adv_estimator": "reinforce_plus_plus"}, "advantages are of all tokens"),
        ({"actor_rollout_ref.actor.policy_loss.loss_mode": "gspo"}, "ratios of sequences are of all tokens"),
        ({"algorithm.adv_estimator": "grpo"}, ""),
    ],
)
def test_what_reads_the_rejected_tokens_here_is_said(beside: dict[str, Any], said: str) -> None:
    """Whitening, a critic's targets, a sequence's ratio."""
    given = {f"{KEY}rollout_rs": "token_k1", f"{KEY}rollout_rs_threshold": 2.0, **beside}
    meaning = meaning_of(KEYS, f"{KEY}rollout_rs", "token_k1", given)
    assert meaning is not None and meaning.note.startswith(said)
    assert meaning.fate == ("changed" if said else "taken")
