"""Translates verl's keys of rollout correction, which must be read together.

Knows: names and plain values.  Knows not: what a correction does.
verl weights tokens by one ratio (`rollout_is`) and rejects tokens by another (`rollout_rs`); here one ratio does both.
"""

from __future__ import annotations

import math
from typing import Any

from ludus.compat.keys import Given, Meaning
from ludus.errors import ConfigError

_KEY = "algorithm.rollout_correction."
_WEIGHED, _KEPT, LOSS_TYPE = _KEY + "rollout_is", _KEY + "rollout_rs", _KEY + "loss_type"
NAMES = (
    *(_WEIGHED, _WEIGHED + "_threshold", _KEPT, _KEPT + "_threshold", _KEPT + "_threshold_lower"),
    *(_KEY + "bypass_mode", LOSS_TYPE),
)
_LEVELS = {"token": "token", "sequence": "episode"}
_MEASURES = {
    "token_k1": ("token", "product"),
    "token_k2": ("token", "product"),
    "seq_sum_k1": ("episode", "product"),
    "seq_mean_k1": ("episode", "geometric"),
    # as they were called before
    "token": ("token", "product"),
    "sequence": ("episode", "product"),
    "geometric": ("episode", "geometric"),
}
"""By `rollout_rs`: the level at which the ratio is bounded, and how ratios of tokens are combined."""


def is_bypassed(given: Given) -> bool:
    """Whether ratios are to the sampling policy, in which case `loss_type` names the loss instead of `loss_mode`."""
    return bool(given.get(_KEY + "bypass_mode"))


def correction(_value: Any, given: Given) -> Meaning:
    """The correction, and with `loss_type=reinforce` the loss; the same for each of these keys."""
    try:
        return _all_of_them(given)
    except ConfigError as refused:
        return Meaning("left out", str(refused))
    except ValueError as error:
        return Meaning("left out", f"a bound must be a number, or two as in 0.5_5: {error}")


def _all_of_them(given: Given) -> Meaning:
    weighed, kept = _weighed(given), _kept(given)
    if not is_bypassed(given):
        if weighed is None and kept is None:
            said = {"algorithm.correction.kind": "none"} if _WEIGHED in given else {}
            return Meaning("taken" if said else "not needed", "" if said else "there is no correction", said)
        return Meaning("taken", ours=_named(_joined(weighed, kept)))
    loss_type = given.get(LOSS_TYPE) or "ppo_clip"
    if loss_type == "ppo_clip":
        if kept is not None:
            raise ConfigError("with bypass_mode and ppo_clip nothing is left out by its ratio; leave out rollout_rs")
        return Meaning("taken", ours={"algorithm.correction.kind": "bypass"})
    if loss_type != "reinforce":
        raise ConfigError(f"loss_type={loss_type!r} is not available here; there are ppo_clip, reinforce")
    ours = {"algorithm.loss.kind": "policy_gradient"}
    if weighed is None and kept is None:
        return Meaning("taken", ours={**ours, "algorithm.correction.kind": "bypass"})
    # the weight is of the policy under training: it is then the proximal one
    return Meaning("taken", ours={**ours, "algorithm.proximal": "reuse", **_named(_joined(weighed, kept))})


def _named(correction: dict[str, Any]) -> dict[str, Any]:
    return {f"algorithm.correction.{name}": value for name, value in correction.items()}


def _weighed(given: Given) -> dict[str, Any] | None:
    """The truncation of weights by `rollout_is`: bounds such as 0.5_5 reject tokens, one number caps weights. None: no
    weights."""
    level = given.get(_WEIGHED)
    if level is None:
        return None
    if level not in _LEVELS:
        raise ConfigError(f"{level!r} is not available here; there are {', '.join(_LEVELS)}")
    low, high = _bounds(given.get(_WEIGHED + "_threshold", 2.0))
    own = {"cap": high} if low is None else {"kind": "mask", "low": low, "high": high}
    return {**own, "level": _LEVELS[level]}


def _kept(given: Given) -> dict[str, Any] | None:
    """The rejection by `rollout_rs`: tokens with ratios within bounds have weight 1. None: nothing is rejected."""
    measure = given.get(_KEPT)
    if measure is None:
        return None
    if measure not in _MEASURES:
        raise ConfigError(
            f"rollout_rs={measure!r} is not available here; one of {', '.join(_MEASURES)} can be, each by itself"
        )
    threshold = given.get(_KEPT + "_threshold")
    if threshold is None:
        raise ConfigError("rollout_rs needs rollout_rs_threshold")
    low, high = _bounds(threshold)
    if measure.endswith("_k2"):  # half the square of the logarithm
        high = math.exp(math.sqrt(2 * high))
        low = 1 / high
    elif measure.endswith("_k1"):  # of mu / pi
        low, high = 1 / high, high if low is None else 1 / low
    else:
        own = given.get(_KEPT + "_threshold_lower")
        low = 1 / high if own is None else float(own)
    level, mean = _MEASURES[measure]
    return {"kind": "mask", "weighs": False, "low": low, "high": high, "level": level, "mean": mean}


def _joined(weighed: dict[str, Any] | None, kept: dict[str, Any] | None) -> dict[str, Any]:
    """Both as one correction, if they use the same ratio."""
    if weighed is None or kept is None:
        return weighed or kept or {}
    if (weighed["level"], "product") != (kept["level"], kept["mean"]):
        raise ConfigError("rollout_is and rollout_rs are of different measures, and here one does both; leave out one")
    low, high = max(weighed.get("low", 0.0), kept["low"]), min(weighed.get("high", math.inf), kept["high"])
    if weighed.get("cap", math.inf) < high:
        raise ConfigError(
            f"weights up to {high:g} are kept and cut at {weighed['cap']:g}, and here a weight that is kept is whole; "
            "set rollout_is_threshold to as much"
        )
    return {**kept, "weighs": True, "low": low, "high": high}


def _bounds(text: Any) -> tuple[float | None, float]:
    """`0.5_5`, or one number, which is the upper one."""
    first, separator, second = str(text).partition("_")
    return (float(first), float(second)) if separator else (None, float(first))
