"""What is compared: by peer and name the keys of `algorithm` here, and what the peer is asked for (run_verl, run_trl).

A peer's constants that are not settings here are given to it: the eps of a group's spread, a dual clip out of reach.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

Keys = dict[str, Any]


EVERYTHING = ("advantages", "loss", "gradient", "entropy_gradient")
ADVANTAGES_ALONE = ("advantages",)
"""TRL's RLOO has a loss of its own, clipped by the product of a sequence's ratios."""


@dataclass(frozen=True)
class Case:
    """One algorithm, here and there."""

    name: str
    peer: str
    keys: Keys
    """Of `algorithm`."""
    asked: Keys
    """Of the peer."""
    compared: tuple[str, ...] = EVERYTHING


LONGEST = 9
"""Tokens of the longest answer."""


def verl(name: str, keys: Keys, **asked: Any) -> Case:
    actor = {"clip_ratio_c": 1e9, **asked.pop("actor", {})}
    if asked.get("estimator", "grpo") in ("grpo", "grpo_vectorized", "gdpo"):
        asked["estimator_keys"] = {"epsilon": 1e-4, **asked.get("estimator_keys", {})}
    return Case(name, "verl", keys, {**asked, "actor": actor})


def trl(name: str, keys: Keys, trainer: str = "grpo", compared: tuple[str, ...] = EVERYTHING, **config: Any) -> Case:
    asked = {"trainer": trainer, "use_vllm": "vllm_importance_sampling_mode" in config, "config": config}
    return Case(name, "TRL", keys, asked, compared)


def actor(bound: float, cap: float) -> Keys:
    return {"clip_ratio_low": bound, "clip_ratio_high": bound, "clip_ratio_c": cap}


PROXIMAL = {"correction": "none"}
"""Ratios to the weights that the batch began with, as TRL and verl take them."""
UNSCALED = {"scale": "none"}

ESTIMATORS = (
    verl("grpo", {**PROXIMAL, "advantage": {"eps": 1e-6}}, estimator_keys={"epsilon": 1e-6}),
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
    trl("rloo", {**PROXIMAL, "name": "rloo"}, "rloo", ADVANTAGES_ALONE, beta=0.0),
    trl("spread of the batch", {**PROXIMAL, "advantage": {"scale": "batch"}}, scale_rewards="batch"),
    verl("opo", {**PROXIMAL, "advantage": {"baseline": "length", "scale": "none"}}, estimator="opo"),
    verl(
        "reinforce_plus_plus",
        {**PROXIMAL, "advantage": {"kind": "whitened", "over": "tokens"}},
        estimator="reinforce_plus_plus",
    ),
    verl(
        "reinforce_plus_plus_baseline",
        {**PROXIMAL, "advantage": {"kind": "whitened", "baseline": "mean", "over": "tokens"}},
        estimator="reinforce_plus_plus_baseline",
    ),
    verl(
        "pass_at_k",
        {**PROXIMAL, "advantage": "pass_at_k"},
        estimator="grpo_passk",
        algorithm={"norm_adv_by_std_in_grpo": False},
    ),
    # no reward but those of the flat group is 0: there alone verl's factor is the paper's
    verl("gpg", {**PROXIMAL, "advantage": "gpg", "loss": "policy_gradient"}, estimator="gpg", loss="gpg"),
)


def loss(kind: str, *, normaliser: Any = "token", **keys: Any) -> Keys:
    return {**PROXIMAL, "loss": {"kind": kind, **keys}, "normaliser": normaliser}


BY_EPISODE = {"level": "episode", "normaliser": "episode"}
MEAN_OF_MEANS = "seq-mean-token-mean"
LOSSES = (
    verl("clip-higher", loss("clip", clip_high=0.28), actor={"clip_ratio_high": 0.28}),
    trl("clip-higher", loss("clip", clip_high=0.28), loss_type="dapo", epsilon_high=0.28),
    verl("clip to the sampler", {"correction": "bypass"}, old="sampled"),
    verl("dual clip", loss("clip", dual_clip=1.3), actor={"clip_ratio_c": 1.3}),
    trl("dual clip", loss("clip", dual_clip=1.3), delta=1.3),
    verl("gspo", loss("clip", **BY_EPISODE), loss="gspo", aggregation=MEAN_OF_MEANS),
    trl("gspo", loss("clip", **BY_EPISODE), loss_type="grpo", importance_sampling_level="sequence"),
    trl(
        "luspo",
        loss("clip", level="episode", normaliser={"kind": "constant", "tokens": 1}),
        loss_type="luspo",
        importance_sampling_level="sequence",
    ),
    verl("cispo", loss("cispo", clip_high=0.3), loss="cispo", actor={"clip_ratio_low": 1.0, "clip_ratio_high": 0.3}),
    verl("cispo, bounded below", loss("cispo", clip_low=0.2, clip_high=0.2), loss="cispo"),
    trl("cispo", loss("cispo", clip_high=0.3), loss_type="cispo", epsilon_high=1.3),
    verl("sapo", loss("sapo", normaliser="episode"), loss="sapo"),
    trl("sapo", loss("sapo", normaliser="episode"), loss_type="sapo"),
    verl(
        "gmpo",
        loss("gmpo", normaliser="episode"),
        loss="geo_mean",
        actor={"clip_ratio_low": 0.4, "clip_ratio_high": 0.4},
    ),
    verl(
        "gmpo, clipped",
        loss("gmpo", clip_low=0.1, clip_high=0.1, normaliser="episode"),
        loss="geo_mean",
        actor={"clip_ratio_low": 0.1, "clip_ratio_high": 0.1},
    ),
    trl("gmpo", loss("gmpo", clip_low=0.1, clip_high=0.1, normaliser="episode"), "gmpo", epsilon=0.1),
    verl("dppo, total variation", loss("dppo", low=0.05, high=0.05), loss="dppo_tv", actor=actor(0.05, 20.0)),
    verl("dppo, total variation, capped", loss("dppo", cap=1.1), loss="dppo_tv", actor=actor(0.2, 1.1)),
    verl("dppo, kl", loss("dppo", divergence="kl", low=0.01, high=0.01), loss="dppo_kl", actor=actor(0.01, 20.0)),
    verl("policy gradient", loss("policy_gradient"), loss="gpg"),
    trl("vespo", loss("vespo"), loss_type="vespo"),
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
CAP, BAND = 1.2, {"low": 0.8, "high": 1.25}
"""Bounds of importance weights."""


def corrected(kind: str, **keys: Any) -> Keys:
    return {"correction": {"kind": kind, **keys}}


def weighed(level: str, threshold: Any) -> Keys:
    return {"correction": {"rollout_is": level, "rollout_is_threshold": threshold}}


def on_engine(mode: str, low: float | None, high: float) -> Keys:
    return {
        "vllm_importance_sampling_mode": mode,
        "vllm_importance_sampling_clip_min": low,
        "vllm_importance_sampling_clip_max": high,
    }


CORRECTIONS = (
    verl("truncate", corrected("truncate", cap=CAP), **weighed("token", CAP)),
    trl("truncate", corrected("truncate", cap=CAP), **on_engine("token_truncate", None, CAP)),
    verl("truncate, by episode", corrected("truncate", cap=CAP, level="episode"), **weighed("sequence", CAP)),
    trl(
        "truncate, by episode",
        corrected("truncate", cap=CAP, level="episode"),
        **on_engine("sequence_truncate", None, CAP),
    ),
    verl("mask", corrected("mask", **BAND), **weighed("token", "0.8_1.25")),
    trl("mask", corrected("mask", **BAND), **on_engine("token_mask", 0.8, 1.25)),
    verl("mask, by episode", corrected("mask", level="episode", **BAND), **weighed("sequence", "0.8_1.25")),
    trl("mask, by episode", corrected("mask", level="episode", **BAND), **on_engine("sequence_mask", 0.8, 1.25)),
    # verl bounds mu / pi
    verl(
        "mask, kept once",
        corrected("mask", weighs=False, low=0.8, high=1.0 / 0.9),
        correction={"rollout_rs": "token_k1", "rollout_rs_threshold": "0.9_1.25"},
    ),
    verl(
        "mask, by episode's geometric mean, kept once",
        corrected("mask", weighs=False, level="episode", mean="geometric", low=1 / 1.02, high=1 / 0.95),
        correction={"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": "0.95_1.02"},
    ),
    trl(
        "off-policy mask",
        {**PROXIMAL, "off_policy_mask": {"threshold": 0.01}},
        off_policy_mask_threshold=0.01,
    ),
)
DIVERGENCES = (
    *(
        verl(f"kl {kind}", {**PROXIMAL, "kl": {"beta": 0.1, "estimator": kind}}, kl={"type": kind, "beta": 0.1})
        for kind in ("k1", "k2", "k3", "abs")
    ),
    trl("kl k3", {**PROXIMAL, "kl": {"beta": 0.1}}, beta=0.1, use_bias_correction_kl=False),
    trl("kl k3, weighted", {**PROXIMAL, "kl": {"beta": 0.1, "weighted": True}}, beta=0.1),
    verl("entropy", {**PROXIMAL, "entropy": {"coef": 0.1}}, entropy=0.1),
    trl("entropy", {**PROXIMAL, "entropy": {"coef": 0.1}}, entropy_coef=0.1),
)
CASES = ESTIMATORS + LOSSES + AGGREGATIONS + CORRECTIONS + DIVERGENCES

RIGHT_OR_WRONG = {"rewards": torch.tensor([[1.0], [0.0], [0.0], [0.0]] * 2 + [[0.0]] * 4)}
OF_ITS_OWN = (
    verl(
        "gpg of right and wrong answers",
        {**PROXIMAL, "advantage": "gpg", "loss": "policy_gradient"},
        estimator="gpg",
        loss="gpg",
        given=RIGHT_OR_WRONG,
    ),
    verl(
        "gdpo of unequal lengths",
        {**PROXIMAL, "advantage": {"kind": "gdpo", "rewards": {"reward0": 1.0, "reward1": 1.0}}},
        estimator="gdpo",
    ),
    verl("pass_at_k as set", {**PROXIMAL, "advantage": "pass_at_k"}, estimator="grpo_passk"),
    verl(
        "mask by the ratio that the help speaks of",
        corrected("mask", weighs=False, low=0.9, high=1.25),
        correction={"rollout_rs": "token_k1", "rollout_rs_threshold": "0.9_1.25"},
    ),
    verl("cispo as set", loss("cispo"), loss="cispo"),
    trl("cispo as set", loss("cispo"), loss_type="cispo"),
    trl("luspo as set", loss("clip", level="episode", normaliser={"kind": "constant", "tokens": 1}), loss_type="luspo"),
)
"""Where a peer parts from the paper that it names."""
