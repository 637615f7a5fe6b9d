"""What is compared: by peer and name the keys of `algorithm` here, and what the peer is asked for (run_verl, run_trl).

A peer's constants that are not settings here are given to it: the eps of a group's spread, a dual clip out of reach.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from ludus.compat.verl.keys import renamed

Keys = dict[str, Any]


EVERYTHING = ("advantages", "loss", "gradient", "entropy_gradient")


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
    sampler: str = "sampled"
    """The tensor that holds our sampler's logprobs."""


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


def replace_given(case: Case, tensors: Keys) -> Case:
    """The case with these of its tensors."""
    return replace(case, asked={**case.asked, "given": tensors})


def in_three(case: Case) -> Case:
    """The case in three minibatches of one group each; their losses are added up."""
    asked = {**case.asked, "minibatches": 3}
    return replace(case, name=f"{case.name}, three minibatches", keys={**case.keys, "minibatches": 3}, asked=asked)


def actor(low: float, high: float, cap: float = 1e9) -> Keys:
    return {"clip_ratio_low": low, "clip_ratio_high": high, "clip_ratio_c": cap}


def named(name: str, **keys: Any) -> Keys:
    """An algorithm by its name, for one minibatch, with ratios to other weights, as TRL and verl take them."""
    return {"name": name, "correction": "none", "minibatches": 1, **keys}


def clip(**keys: Any) -> Keys:
    return named("grpo", loss=keys)


def dpo(variant: str, **keys: Any) -> Keys:
    return {"name": "dpo", "loss": {"variant": variant, **keys}}


WIDE = {"clip_low": 0.2, "clip_high": 0.2}
UNDIVIDED = {"norm_adv_by_std_in_grpo": False}
BY_SEQUENCE = {"importance_sampling_level": "sequence"}
REWARDS = {"reward0": 0.5, "reward1": 2.0}

ESTIMATORS = (
    verl("grpo", named("grpo", advantage={"eps": 1e-6}), estimator_keys={"epsilon": 1e-6}),
    verl("grpo, vectorized", named("grpo"), estimator="grpo_vectorized"),
    trl("grpo", named("grpo", normaliser="episode"), loss_type="grpo"),
    verl(
        "dr_grpo",
        named("dr_grpo", normaliser={"tokens": LONGEST}),
        estimator_keys=UNDIVIDED,
        aggregation="seq-mean-token-sum-norm",
    ),
    trl("dr_grpo", named("dr_grpo", normaliser={"tokens": LONGEST}), loss_type="dr_grpo", scale_rewards="none"),
    verl("rloo", named("rloo"), estimator="rloo"),
    verl("rloo, vectorized", named("rloo"), estimator="rloo_vectorized"),
    trl(
        "rloo",
        named("rloo", loss={"level": "episode", "mean": "product"}, normaliser={"kind": "constant", "tokens": 1}),
        "rloo",
        ("advantages", "gradient"),  # the loss of a sequence counts once for each of its tokens here
        beta=0.0,
    ),
    trl("lite_ppo", named("lite_ppo"), scale_rewards="batch"),
    replace_given(verl("remax", named("remax"), estimator="remax"), {"baselines": torch.tensor([0.3, 1.2, 0.5])}),
    verl("opo", named("opo"), estimator="opo", loss="gpg"),
    verl("reinforce_plus_plus", named("reinforce_plus_plus"), estimator="reinforce_plus_plus"),
    verl(
        "reinforce_plus_plus_baseline",
        named("reinforce_plus_plus_baseline"),
        estimator="reinforce_plus_plus_baseline",
    ),
    *(
        replace(
            verl(
                f"gae, gamma={gamma}, lam={lam}",
                named("ppo", advantage={"gamma": gamma, "lam": lam}),
                estimator="gae",
                estimator_keys={"gamma": gamma, "lam": lam},
            ),
            compared=(*EVERYTHING, "returns"),
        )
        for gamma, lam in ((1.0, 1.0), (0.98, 0.9))
    ),
    verl("pass_at_k", named("pass_at_k"), estimator="grpo_passk", algorithm=UNDIVIDED),
    verl("optimal_token", named("optimal_token"), estimator="optimal_token_baseline"),
    verl("optimal_token, of turns", named("optimal_token"), estimator="tir_optimal_token_baseline"),
    # no reward but those of the flat group is 0: there alone verl's factor is the paper's
    verl("gpg", named("gpg"), estimator="gpg", loss="gpg"),
    trl(
        "gdpo",
        named("gdpo", advantage={"rewards": REWARDS}),
        multi_objective_aggregation="normalize_then_sum",
        reward_weights=list(REWARDS.values()),
    ),
)
LOSSES = (
    verl("clip-higher", clip(clip_high=0.28), actor={"clip_ratio_high": 0.28}),
    trl("clip-higher", clip(clip_high=0.28), loss_type="dapo", epsilon_high=0.28),
    verl("clip to the sampler", {"correction": "bypass"}, old="sampled"),
    verl("dual clip", clip(dual_clip=1.3), actor={"clip_ratio_c": 1.3}),
    trl("dual clip", clip(dual_clip=1.3), delta=1.3),
    verl("gspo", named("gspo", loss=WIDE), loss="gspo", aggregation="seq-mean-token-mean"),
    trl("gspo", named("gspo", loss=WIDE), loss_type="grpo", **BY_SEQUENCE),
    trl("luspo", named("luspo", loss=WIDE), loss_type="luspo", **BY_SEQUENCE),
    verl("cispo", {"name": "cispo", "loss": {"clip_high": 0.3}}, loss="cispo", actor=actor(1.0, 0.3), old="sampled"),
    verl("cispo, bounded below", named("cispo", loss=WIDE), loss="cispo"),
    trl("cispo", named("cispo", loss={"clip_high": 0.3}), loss_type="cispo", epsilon_high=1.3),
    verl("sapo", named("sapo"), loss="sapo"),
    trl("sapo", named("sapo"), loss_type="sapo"),
    verl("gmpo", named("gmpo"), loss="geo_mean", actor=actor(0.4, 0.4)),
    verl(
        "gmpo, clipped", named("gmpo", loss={"clip_low": 0.1, "clip_high": 0.1}), loss="geo_mean", actor=actor(0.1, 0.1)
    ),
    trl("gmpo", named("gmpo", loss={"clip_low": 0.1, "clip_high": 0.1}), "gmpo", epsilon=0.1),
    verl("dppo", {"name": "dppo"}, loss="dppo_tv", actor=actor(0.2, 0.2, 20.0), old="sampled"),
    verl("dppo, near", named("dppo", loss={"low": 0.05, "high": 0.05}), loss="dppo_tv", actor=actor(0.05, 0.05)),
    verl("dppo, capped", named("dppo", loss={"cap": 1.1}), loss="dppo_tv", actor=actor(0.2, 0.2, 1.1)),
    verl(
        "dppo, kl",
        named("dppo", loss={"divergence": "kl", "low": 0.01, "high": 0.01}),
        loss="dppo_kl",
        actor=actor(0.01, 0.01),
    ),
    # every token that may be drawn is
    verl(
        "clip_cov",
        named("clip_cov", loss={"share": 1.0, "low": 0.02, "high": 0.4}),
        loss="clip_cov",
        policy_loss={"clip_cov_ratio": 1.0, "clip_cov_lb": 0.02, "clip_cov_ub": 0.4},
    ),
    verl(
        "kl_cov",
        named("kl_cov", loss={"share": 0.2, "coef": 0.5}),
        loss="kl_cov",
        policy_loss={"kl_cov_ratio": 0.2, "ppo_kl_coef": 0.5},
    ),
    verl("dro", named("grpo", loss={"kind": "dro", "beta": 0.3}), loss="dro", policy_loss={"dro_beta": 0.3}),
    verl("policy gradient", named("grpo", loss="policy_gradient"), loss="gpg"),
    trl("vespo", named("vespo"), loss_type="vespo"),
)
AGGREGATIONS = (
    verl("token mean", named("grpo"), aggregation="token-mean"),
    trl("token mean", named("grpo"), loss_type="bnpo"),
    verl("episode mean", named("grpo", normaliser="episode"), aggregation="seq-mean-token-mean"),
    verl(
        "constant",
        named("grpo", normaliser={"kind": "constant", "tokens": 100}),
        aggregation="seq-mean-token-sum-norm",
        loss_scale_factor=100,
    ),
    *(
        in_three(case)
        for case in (
            trl("token mean", named("grpo"), loss_type="dapo"),
            trl("cispo", named("cispo", loss={"clip_high": 0.3}), loss_type="cispo", epsilon_high=1.3),
            trl("vespo", named("vespo"), loss_type="vespo"),
            trl("episode mean", named("grpo", normaliser="episode"), loss_type="grpo"),
            verl("episode mean", named("grpo", normaliser="episode"), aggregation="seq-mean-token-mean"),
        )
    ),
)
TRUNCATED = {"truncated": torch.arange(12) % 3 == 0}
MASKS = (
    replace_given(
        trl(
            "truncated answers masked",
            named("grpo", mask_truncated_completions=True),
            compared=("loss", "gradient"),  # TRL's answers that were cut have advantages, which nothing reads
            loss_type="bnpo",
            mask_truncated_completions=True,
        ),
        TRUNCATED,
    ),
)
CAP, BAND = 1.2, {"low": 0.8, "high": 1.25}
"""Bounds of importance weights."""


def distilled(divergence: str, weight: float = 1.0, **keys: Any) -> Keys:
    """A teacher's gradient as it is, without a ratio."""
    teacher = {"divergence": divergence, "weight": weight}
    return named("distillation", distillation=teacher, loss="policy_gradient", correction="bypass", **keys)


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
    trl("icepop", {"name": "icepop"}, **on_engine("token_mask", 0.5, 5.0)),
    trl("mask", corrected("mask", **BAND), **on_engine("token_mask", 0.8, 1.25)),
    verl("mask, by episode", corrected("mask", level="episode", **BAND), **weighed("sequence", "0.8_1.25")),
    trl("mask, by episode", corrected("mask", level="episode", **BAND), **on_engine("sequence_mask", 0.8, 1.25)),
    trl(
        "off-policy mask",
        named("grpo", off_policy_mask={"threshold": 0.01}),
        off_policy_mask_threshold=0.01,
    ),
)
RATIOS, GEOMETRICS, SUMS = "0.9_1.25", "0.92_1.06", "0.6_1.4"
MOST = {"token": 0.02, "mean": 0.02, "sum": 0.1, "max": 0.07}
"""Bounds by which about half is rejected: of mu / pi, of divergences."""
NOT_ADVANTAGES = tuple(name for name in EVERYTHING if name != "advantages")
"""verl's are 0 where a token is rejected, and nothing reads them there."""


def rejected(name: str, beside: Keys | None = None, preset: tuple[str, Keys] | None = None, **correction: Any) -> Case:
    """verl's rollout correction, and ours as it is imported.

    beside: more keys of ours, and with `asked` of verl's.  preset: of verl's, by name, and its arguments.
    """
    ours = dict(beside or {})
    theirs = ours.pop("asked", {})
    aggregation = {"actor_rollout_ref": {"actor": {"loss_agg_mode": theirs.get("aggregation", "token-mean")}}}
    imported = renamed({"algorithm": {"rollout_correction": correction}, **aggregation})["algorithm"]
    case = verl(name, {**imported, "minibatches": 1, **ours}, correction=correction, **theirs)
    case = case if preset is None else replace(case, asked={**case.asked, "preset": preset})
    return replace(case, compared=NOT_ADVANTAGES)


def preset(name: str, bounds: Keys | None = None, **correction: Any) -> Case:
    """One of verl's `RolloutCorrectionConfig`; run_verl holds the keys to verl's own."""
    return rejected(f"preset {name}", preset=(name, bounds or {}), **{"rollout_is": None, **correction})


ICEPOP: Keys = {"threshold": 1.25, "threshold_lower": 0.8}
WEIGHTS: Keys = {"is_threshold": CAP}
GEOMETRIC: Keys = {"rs_threshold": GEOMETRICS}
OF_DIVERGENCE: Keys = {"rs_threshold": MOST["mean"]}
BY_TOKEN: Keys = {"rollout_is": "token", "rollout_is_threshold": CAP}
BY_EPISODE: Keys = {**BY_TOKEN, "rollout_is": "sequence"}
BY_RATIO: Keys = {"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": GEOMETRICS}
BY_K3: Keys = {"rollout_rs": "seq_mean_k3", "rollout_rs_threshold": MOST["mean"]}
CLIPPED: Keys = {"bypass_mode": True, "loss_type": "ppo_clip"}
REINFORCED: Keys = {**CLIPPED, "loss_type": "reinforce"}
REJECTIONS = (
    preset("disabled"),
    preset("decoupled_token_is", {"threshold": CAP}, **BY_TOKEN),
    preset("decoupled_seq_is", {"threshold": CAP}, **BY_EPISODE),
    preset("decoupled_token_icepop", ICEPOP, **{**BY_TOKEN, "rollout_is_threshold": "0.8_1.25"}),
    preset(
        "decoupled_seq_is_rs",
        {**WEIGHTS, "rs_threshold": SUMS},
        **BY_EPISODE,
        rollout_rs="seq_sum_k1",
        rollout_rs_threshold=SUMS,
    ),
    preset("decoupled_geo_rs", GEOMETRIC, **BY_RATIO),
    preset("decoupled_geo_rs_seq_tis", {**WEIGHTS, **GEOMETRIC}, **BY_EPISODE, **BY_RATIO),
    preset("decoupled_geo_rs_token_tis", {**WEIGHTS, **GEOMETRIC}, **BY_TOKEN, **BY_RATIO),
    preset("decoupled_k3_rs", OF_DIVERGENCE, **BY_K3),
    preset("decoupled_k3_rs_seq_tis", {**WEIGHTS, **OF_DIVERGENCE}, **BY_EPISODE, **BY_K3),
    preset("decoupled_k3_rs_token_tis", {**WEIGHTS, **OF_DIVERGENCE}, **BY_TOKEN, **BY_K3),
    preset("bypass_ppo_clip", **CLIPPED),
    preset("bypass_ppo_clip_geo_rs", GEOMETRIC, **CLIPPED, **BY_RATIO),
    preset("bypass_ppo_clip_k3_rs", OF_DIVERGENCE, **CLIPPED, **BY_K3),
    preset("bypass_pg_is", {"threshold": CAP}, **REINFORCED, **BY_EPISODE),
    preset("bypass_pg_token_icepop", ICEPOP, **REINFORCED, **{**BY_TOKEN, "rollout_is_threshold": "0.8_1.25"}),
    preset("bypass_pg_geo_rs", GEOMETRIC, **REINFORCED, **BY_RATIO),
    preset("bypass_pg_geo_rs_seq_tis", {**WEIGHTS, **GEOMETRIC}, **REINFORCED, **BY_EPISODE, **BY_RATIO),
    preset("bypass_pg_geo_rs_token_tis", {**WEIGHTS, **GEOMETRIC}, **REINFORCED, **BY_TOKEN, **BY_RATIO),
    *(
        rejected(f"rejected by {measure}", rollout_rs=measure, rollout_rs_threshold=bound)
        for measure, bound in {
            "token_k1": RATIOS,
            "seq_sum_k1": SUMS,
            "seq_mean_k1": GEOMETRICS,
            **{f"token_{kind}": MOST["token"] for kind in ("k2", "k3")},
            **{f"seq_{how}_{kind}": MOST[how] for how in ("sum", "mean", "max") for kind in ("k2", "k3")},
        }.items()
    ),
    rejected(
        "rejected by several",
        rollout_is="token",
        rollout_is_threshold="0.8_1.25",
        rollout_rs="token_k1,seq_max_k3",
        rollout_rs_threshold=f"{RATIOS},{MOST['max']}",
    ),
    *(
        rejected(
            f"rejected tokens, {name}",
            {
                **keys,
                "kl": {"beta": 0.1, "estimator": "k1"},
                "entropy": {"coef": 0.1},
                "asked": {**asked, "kl": {"type": "k1", "beta": 0.1}, "entropy": 0.1},
            },
            rollout_rs="token_k1",
            rollout_rs_threshold=RATIOS,
        )
        for name, keys, asked in (
            ("token mean", {}, {}),
            ("episode mean", {"normaliser": "episode"}, {"aggregation": "seq-mean-token-mean"}),
            (
                "constant",
                {"normaliser": {"kind": "constant", "tokens": 100}},
                {"aggregation": "seq-mean-token-sum-norm", "loss_scale_factor": 100},
            ),
        )
    ),
)
DIVERGENCES = (
    *(
        verl(f"kl {kind}", named("grpo", kl={"beta": 0.1, "estimator": kind}), kl={"type": kind, "beta": 0.1})
        for kind in ("k1", "k2", "k3", "abs")
    ),
    trl("kl k3", named("grpo", kl={"beta": 0.1}), beta=0.1, use_bias_correction_kl=False),
    # TRL weighs by the ratio to the weights that the batch began with, as if they had sampled
    replace(trl("kl k3, weighted", named("grpo", kl={"beta": 0.1, "weighted": True}), beta=0.1), sampler="proximal"),
    verl("entropy", named("grpo", entropy={"coef": 0.1}), entropy=0.1),
    verl(
        "entropy, episode mean",
        named("grpo", entropy={"coef": 0.1}, normaliser="episode"),
        entropy=0.1,
        aggregation="seq-mean-token-mean",
    ),
    verl(
        "entropy, constant",
        named("grpo", entropy={"coef": 0.1}, normaliser={"kind": "constant", "tokens": 100}),
        entropy=0.1,
        aggregation="seq-mean-token-sum-norm",
        loss_scale_factor=100,
    ),
    *(
        replace(
            verl(f"distillation, {mode}", distilled(divergence), distillation={"loss_mode": mode}),
            compared=("gradient",),  # the losses are of other values, and of one gradient
        )
        for mode, divergence in (("k2", "reverse"), ("k3", "forward"))
    ),
    replace(
        verl(
            "distillation, k1 as an advantage",
            named("distillation", correction="none"),
            distillation={"loss_mode": "k1", "use_policy_gradient": True},
        ),
        compared=("loss", "gradient"),
    ),
    replace(
        verl(
            "distillation beside the task",
            distilled("reverse", weight=0.5, advantage="group"),
            loss="gpg",
            distillation={"loss_mode": "k2", "coef": 0.5},
        ),
        compared=("gradient",),
    ),
    trl("entropy", named("grpo", entropy={"coef": 0.1}), entropy_coef=0.1),
    *(
        trl(
            f"adaptive entropy, {side} its target",
            named("grpo", entropy={"coef": 0.1, "target": target, "delta": 0.02}),
            compared=(*EVERYTHING, "entropy_coef"),
            use_adaptive_entropy=True,
            entropy_coef=0.1,
            entropy_coef_delta=0.02,
            entropy_target=target,
        )
        for side, target in (("above", 0.1), ("below", 5.0))
    ),
    trl("top-entropy tokens", named("grpo", top_entropy=0.4), top_entropy_quantile=0.4),
    trl(
        "entropy of top-entropy tokens",
        named("grpo", top_entropy=0.4, entropy={"coef": 0.1}),
        top_entropy_quantile=0.4,
        entropy_coef=0.1,
    ),
    # the target lies between the mean of these tokens and that of all
    trl(
        "adaptive entropy of top-entropy tokens",
        named("grpo", top_entropy=0.4, entropy={"coef": 0.1, "target": 1.3, "delta": 0.02}),
        compared=(*EVERYTHING, "entropy_coef"),
        top_entropy_quantile=0.4,
        use_adaptive_entropy=True,
        entropy_coef=0.1,
        entropy_coef_delta=0.02,
        entropy_target=1.3,
    ),
)


def taken_off(name: str, of_token: str, kind: str = "fixed", **keys: Any) -> Case:
    """The divergence in the reward."""
    ours = {"coef": 0.1, "estimator": of_token}
    adaptive = {"target": 0.05, "horizon": 100}
    theirs = {"type": kind, "kl_coef": 0.1, "target_kl": 0.05, "horizon": 100}
    case = verl(
        f"kl {of_token} in the reward, {name}" + (", adaptive" if kind == "adaptive" else ""),
        named(name, reward_kl=ours | (adaptive if kind == "adaptive" else {})),
        reward_kl={"kl_penalty": of_token, "kl_ctrl": theirs},
        **keys,
    )
    return replace(case, compared=(*EVERYTHING, "kl_coef") if kind == "adaptive" else EVERYTHING)


IN_THE_REWARD = (
    *(taken_off("grpo", of_token) for of_token in ("k1", "k2", "k3", "abs")),
    taken_off("grpo", "k1", "adaptive"),
    taken_off("rloo", "k1", estimator="rloo"),
    taken_off("reinforce_plus_plus", "k1", estimator="reinforce_plus_plus"),
    taken_off("reinforce_plus_plus_baseline", "k1", estimator="reinforce_plus_plus_baseline"),
    taken_off("ppo", "k1", "adaptive", estimator="gae", estimator_keys={"gamma": 1.0, "lam": 1.0}),
)
PREFERENCES = ("loss", "gradient")
"""TRL is given the pairs."""
PAIRS = (
    trl("dpo", {"name": "dpo"}, "dpo", PREFERENCES, beta=0.1),
    trl("dpo, robust", dpo("robust", label_smoothing=0.2), "dpo", PREFERENCES, loss_type="robust", label_smoothing=0.2),
    trl("dpo, hinge", dpo("hinge", beta=0.5), "dpo", PREFERENCES, loss_type="hinge", beta=0.5),
    trl("dpo, ipo", dpo("ipo", beta=0.5), "dpo", PREFERENCES, loss_type="ipo", beta=0.5),
    trl(
        "kto",
        {"name": "kto", "loss": {"desirable_weight": 1.5, "undesirable_weight": 0.5}},
        "kto",
        PREFERENCES,
        beta=0.1,
        desirable_weight=1.5,
        undesirable_weight=0.5,
    ),
    trl("orpo", {"name": "orpo", "loss": {"beta": 0.3}}, "orpo", PREFERENCES, beta=0.3),
    trl("reward model", {}, "reward", PREFERENCES, center_rewards_coefficient=0.01),
)
VALUES = (
    replace(verl("critic", {}, clip_range=0.2), compared=PREFERENCES),
    replace(verl("critic, hardly clipped", {}, clip_range=5.0), compared=PREFERENCES),
)
"""Losses of a critic."""
CASES = (
    ESTIMATORS + LOSSES + AGGREGATIONS + MASKS + CORRECTIONS + REJECTIONS + DIVERGENCES + IN_THE_REWARD + PAIRS + VALUES
)

RIGHT_OR_WRONG = {"rewards": torch.tensor([[1.0], [0.0], [0.0], [0.0]] * 2 + [[0.0]] * 4)}
OF_ITS_OWN = (
    verl(
        "gpg of right and wrong answers",
        named("gpg"),
        estimator="gpg",
        loss="gpg",
        given=RIGHT_OR_WRONG,
    ),
    verl(
        "gdpo of unequal lengths",
        named("gdpo", advantage={"rewards": {"reward0": 1.0, "reward1": 1.0}}),
        estimator="gdpo",
    ),
    verl("pass_at_k as set", named("pass_at_k"), estimator="grpo_passk"),
    replace(
        verl(
            "mask by the ratio that the help speaks of",
            corrected("mask", weighs=False, counted=False, low=0.9, high=1.25),
            correction={"rollout_rs": "token_k1", "rollout_rs_threshold": RATIOS},
        ),
        compared=NOT_ADVANTAGES,
    ),
    replace(
        rejected(
            "whitened beside rejected tokens",
            {"name": "reinforce_plus_plus", "asked": {"estimator": "reinforce_plus_plus"}},
            rollout_rs="token_k1",
            rollout_rs_threshold=RATIOS,
        ),
        compared=("gradient",),
    ),
    in_three(verl("token mean", named("grpo"), aggregation="token-mean")),
    in_three(trl("token mean of each", named("grpo"), loss_type="bnpo")),
    verl("cispo as set", named("cispo"), loss="cispo"),
    trl("cispo as set", named("cispo"), loss_type="cispo"),
    trl("luspo as set", named("luspo", loss=WIDE), loss_type="luspo"),
    trl(
        "entropy beside an episode mean",
        named("grpo", normaliser="episode", entropy={"coef": 0.1}),
        compared=("entropy_gradient",),
        loss_type="grpo",
        entropy_coef=0.1,
    ),
    trl("dpo, smoothed", dpo("sigmoid", label_smoothing=0.2), "dpo", PREFERENCES, beta=0.1, label_smoothing=0.2),
)
"""Where a peer parts from the paper that it names."""
