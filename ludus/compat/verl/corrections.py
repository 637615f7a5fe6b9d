"""Translates verl's keys of rollout correction, which must be read together.

Knows: names and plain values.  Knows not: what a correction does.
verl weights tokens by one ratio (`rollout_is`) and rejects them by others (`rollout_rs`): here a list of corrections.
What is rejected leaves verl's denominators, except with `bypass_mode`, where the loss rejects and not the trainer.
"""

from __future__ import annotations

from typing import Any

from ludus.compat.keys import Given, Meaning
from ludus.errors import ConfigError

_KEY = "algorithm.rollout_correction."
_WEIGHED, _KEPT, LOSS_TYPE = _KEY + "rollout_is", _KEY + "rollout_rs", _KEY + "loss_type"
NAMES = (
    *(_WEIGHED, _WEIGHED + "_threshold", _KEPT, _KEPT + "_threshold", _KEPT + "_threshold_lower"),
    *(_KEY + "bypass_mode", LOSS_TYPE),
)
_AGGREGATION = "actor_rollout_ref.actor.loss_agg_mode"
_LOSS_MODE = "actor_rollout_ref.actor.policy_loss.loss_mode"
_LEVELS = {"token": "token", "sequence": "episode"}
_OF_EPISODE: dict[str, Any] = {"level": "episode"}
_GEOMETRIC: dict[str, Any] = {"level": "episode", "mean": "geometric"}
_RATIOS: dict[str, dict[str, Any]] = {
    "token_k1": {},
    "seq_sum_k1": _OF_EPISODE,
    "seq_mean_k1": _GEOMETRIC,
    # as they were called before
    "token": {},
    "sequence": _OF_EPISODE,
    "geometric": _GEOMETRIC,
}
"""By `rollout_rs`: whose ratio is bounded."""
_DIVERGENCES: dict[str, dict[str, Any]] = {
    **{f"token_{estimator}": {"estimator": estimator} for estimator in ("k2", "k3")},
    **{
        f"seq_{combine}_{estimator}": {"estimator": estimator, "combine": combine, "level": "episode"}
        for combine in ("sum", "mean", "max")
        for estimator in ("k2", "k3")
    },
}
"""By `rollout_rs`: which divergence is bounded."""
_OF_ALL_TOKENS = (
    *("gae", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "remax", "opo", "gdpo"),
    *("optimal_token_baseline", "tir_optimal_token_baseline"),
)
"""Estimators that read which tokens are rejected."""


def is_bypassed(given: Given) -> bool:
    """Whether ratios are to the sampling policy, in which case `loss_type` names the loss instead of `loss_mode`."""
    return bool(given.get(_KEY + "bypass_mode"))


def correction(_value: Any, given: Given) -> Meaning:
    """The correction, and with `loss_type=reinforce` the loss; the same for each of these keys."""
    try:
        return _bypassed(given) if is_bypassed(given) else _decoupled(given)
    except ConfigError as refused:
        return Meaning("left out", str(refused))
    except ValueError as error:
        return Meaning("left out", f"a bound must be a number, or two as in 0.5_5: {error}")


def _decoupled(given: Given) -> Meaning:
    """Ratios are to the policy that a batch began with."""
    kept = [{**each, "counted": False} for each in _kept(given)]
    parts = [*_weighed(given), *kept]
    if not parts:
        said = {"algorithm.correction.kind": "none"} if _WEIGHED in given else {}
        return Meaning("taken" if said else "not needed", "" if said else "there is no correction", said)
    whole = ["advantages"] if given.get("algorithm.adv_estimator") in _OF_ALL_TOKENS else []
    whole += ["ratios of sequences"] if given.get(_LOSS_MODE) == "gspo" else []
    if kept and whole:
        note = f"{' and '.join(whole)} are of all tokens; verl leaves those out that are rejected"
        return Meaning("changed", note, _named(parts))
    return Meaning("taken", ours=_named(parts))


def _bypassed(given: Given) -> Meaning:
    """Ratios are to the policy that sampled, and tokens are rejected by them in each minibatch."""
    loss_type, kept = given.get(LOSS_TYPE) or "ppo_clip", _kept(given)
    if loss_type not in ("ppo_clip", "reinforce"):
        raise ConfigError(f"loss_type={loss_type!r} is not available here; there are ppo_clip, reinforce")
    if given.get(_AGGREGATION) == "seq-mean-token-mean" and any("level" not in each for each in kept):
        raise ConfigError(
            "with bypass_mode and loss_agg_mode=seq-mean-token-mean verl divides what is left of a sequence by the "
            "tokens that are left, and KL and entropy by all; here both are divided by one number: reject by sequence, "
            "or take token-mean"
        )
    weighed = [] if loss_type == "ppo_clip" else _weighed(given)
    loss = {} if loss_type == "ppo_clip" else {"algorithm.loss.kind": "policy_gradient"}
    if not weighed:
        return Meaning("taken", ours={**loss, **_named([{"kind": "bypass"}, *kept])})
    # the weight is of the policy under training: it is then the proximal one
    return Meaning("taken", ours={**loss, "algorithm.proximal": "reuse", **_named([*weighed, *kept])})


def _named(parts: list[dict[str, Any]]) -> dict[str, Any]:
    if len(parts) > 1:
        return {"algorithm.correction": parts}
    return {f"algorithm.correction.{name}": value for name, value in parts[0].items()}


def _weighed(given: Given) -> list[dict[str, Any]]:
    """The weights of `rollout_is`: bounds such as 0.5_5 leave tokens out, one number caps weights. Empty: none."""
    level = given.get(_WEIGHED)
    if level is None:
        return []
    if level not in _LEVELS:
        raise ConfigError(f"{level!r} is not available here; there are {', '.join(_LEVELS)}")
    low, high = _bounds(given.get(_WEIGHED + "_threshold", 2.0))
    own = {"kind": "truncate", "cap": high} if low is None else {"kind": "mask", "low": low, "high": high}
    return [{**own, "level": _LEVELS[level]}]


def _kept(given: Given) -> list[dict[str, Any]]:
    """The rejections of `rollout_rs`, of which each token must pass all. Empty: nothing is rejected."""
    named = given.get(_KEPT)
    if named is None:
        return []
    measures = list(dict.fromkeys(each.strip() for each in str(named).split(",")))
    threshold = given.get(_KEPT + "_threshold")
    if threshold is None:
        raise ConfigError("rollout_rs needs rollout_rs_threshold")
    thresholds = [each.strip() for each in str(threshold).split(",")]
    if len(thresholds) not in (1, len(measures)):
        raise ConfigError(f"there are {len(measures)} measures in rollout_rs and {len(thresholds)} thresholds of them")
    each_one = thresholds if len(thresholds) > 1 else thresholds * len(measures)
    return [_rejection(each, bound, given) for each, bound in zip(measures, each_one, strict=True)]


def _rejection(measure: str, threshold: str, given: Given) -> dict[str, Any]:
    if measure in _DIVERGENCES:
        if "_" in threshold:
            raise ConfigError(f"rollout_rs={measure!r} has one bound, an upper one, and not {threshold!r}")
        return {"kind": "divergence", "high": float(threshold), **_DIVERGENCES[measure]}
    if measure not in _RATIOS:
        there = ", ".join((*_RATIOS, *_DIVERGENCES))
        raise ConfigError(f"rollout_rs={measure!r} is not available here; there are {there}")
    low, high = _bounds(threshold)
    if measure.endswith("_k1"):  # of mu / pi
        low, high = 1 / high, high if low is None else 1 / low
    else:
        own = given.get(_KEPT + "_threshold_lower")
        low = 1 / high if own is None else float(own)
    return {"kind": "mask", "weighs": False, "low": low, "high": high, **_RATIOS[measure]}


def _bounds(text: Any) -> tuple[float | None, float]:
    """`0.5_5`, or one number, which is the upper one."""
    first, separator, second = str(text).partition("_")
    return (float(first), float(second)) if separator else (None, float(first))
