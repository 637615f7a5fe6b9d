"""What is compared: by peer and name the keys of `algorithm` here, and what the peer is asked for (run_verl, run_trl).

A peer's constants that are not settings here are given to it: the eps of a group's spread, a dual clip out of reach.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Keys = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One algorithm, here and there."""

    name: str
    peer: str
    keys: Keys
    """Of `algorithm`."""
    asked: Keys
    """Of the peer."""


LONGEST = 9
"""Tokens of the longest answer."""


def verl(name: str, keys: Keys, **asked: Any) -> Case:
    actor = {"clip_ratio_c": 1e9, **asked.pop("actor", {})}
    if asked.get("estimator", "grpo") in ("grpo", "grpo_vectorized", "gdpo"):
        asked["estimator_keys"] = {"epsilon": 1e-4, **asked.get("estimator_keys", {})}
    return Case(name, "verl", keys, {**asked, "actor": actor})


def trl(name: str, keys: Keys, trainer: str = "grpo", **config: Any) -> Case:
    asked = {"trainer": trainer, "use_vllm": "vllm_importance_sampling_mode" in config, "config": config}
    return Case(name, "TRL", keys, asked)


PROXIMAL = {"correction": "none"}
"""Ratios to the weights that the batch began with, as TRL and verl take them."""
UNSCALED = {"scale": "none"}

ESTIMATORS = (
    verl("grpo", PROXIMAL),
    verl("grpo, vectorized", PROXIMAL, estimator="grpo_vectorized"),
    trl("grpo", {**PROXIMAL, "normaliser": "episode"}, loss_type="grpo"),
    verl(
        "dr_grpo",
        {**PROXIMAL, "advantage": UNSCALED, "normaliser": {"kind": "constant", "tokens": LONGEST}},
        estimator_keys={"norm_adv_by_std_in_grpo": False},
        aggregation="seq-mean-token-sum-norm",
    ),
    trl(
        "dr_grpo",
        {**PROXIMAL, "advantage": UNSCALED, "normaliser": {"kind": "constant", "tokens": LONGEST}},
        loss_type="dr_grpo",
        scale_rewards="none",
    ),
    verl("rloo", {**PROXIMAL, "name": "rloo"}, estimator="rloo"),
    verl("rloo, vectorized", {**PROXIMAL, "name": "rloo"}, estimator="rloo_vectorized"),
)
LOSSES = (
    verl("clip-higher", {**PROXIMAL, "loss": {"clip_high": 0.28}}, actor={"clip_ratio_high": 0.28}),
    trl("clip-higher", {**PROXIMAL, "loss": {"clip_high": 0.28}}, loss_type="dapo", epsilon_high=0.28),
    verl(
        "cispo",
        {**PROXIMAL, "loss": {"kind": "cispo", "clip_high": 0.3}},
        loss="cispo",
        actor={"clip_ratio_low": 1.0, "clip_ratio_high": 0.3},
    ),
    trl("cispo", {**PROXIMAL, "loss": {"kind": "cispo", "clip_high": 0.3}}, loss_type="cispo", epsilon_high=1.3),
    verl("clip to the sampler", {"correction": "bypass"}, old="sampled"),
)
AGGREGATIONS = (
    verl("token mean", PROXIMAL, aggregation="token-mean"),
    trl("token mean", PROXIMAL, loss_type="bnpo"),
    verl("episode mean", {**PROXIMAL, "normaliser": "episode"}, aggregation="seq-mean-token-mean"),
    verl(
        "constant",
        {**PROXIMAL, "normaliser": {"kind": "constant", "tokens": 100}},
        aggregation="seq-mean-token-sum-norm",
        loss_scale_factor=100,
    ),
)
CORRECTIONS = (
    verl(
        "truncate",
        {"correction": {"cap": 1.2}},
        correction={"rollout_is": "token", "rollout_is_threshold": 1.2},
    ),
    trl(
        "truncate",
        {"correction": {"cap": 1.2}},
        vllm_importance_sampling_mode="token_truncate",
        vllm_importance_sampling_clip_max=1.2,
    ),
)
DIVERGENCES = (
    verl("kl k3", {**PROXIMAL, "kl": {"beta": 0.1}}, kl={"type": "low_var_kl", "beta": 0.1}),
    trl("kl k3", {**PROXIMAL, "kl": {"beta": 0.1}}, beta=0.1, use_bias_correction_kl=False),
)
CASES = ESTIMATORS + LOSSES + AGGREGATIONS + CORRECTIONS + DIVERGENCES
