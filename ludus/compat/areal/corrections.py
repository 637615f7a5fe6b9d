"""Translates AReaL's keys of the decoupled loss and its rejection sampling, which must be read together.

Knows: names and plain values, AReaL's defaults.  Knows not: what a correction does.
AReaL weights tokens by prox / mu only where `rejection_sampling` is given. Denominators count all tokens, those that
are left out too.
"""

from __future__ import annotations

import math
from typing import Any

from ludus.compat.keys import Given, Meaning
from ludus.errors import ConfigError

SECTION = "actor.rejection_sampling"
_DEFAULTS: dict[str, Any] = {
    "level": "token",
    "action": "mask",
    "metric": "ratio",
    "agg": "mean",
    "upper": 5.0,
    "lower": None,
}
_CAPS, _MODE = ("actor.behave_imp_weight_cap", "actor.behav_imp_weight_cap"), "actor.behave_imp_weight_mode"
OF_DECOUPLED = (SECTION, *(f"{SECTION}.{name}" for name in _DEFAULTS), *_CAPS, _MODE)
"""What acts with `use_decoupled_loss` alone; the last are names of earlier versions."""
_KEY = "algorithm.correction"
_UNBOUNDED: dict[str, Any] = {"kind": "truncate", "cap": 1e9}
"""A token's own weight: more than any ratio, which is at most e^20."""
_GEOMETRIC: dict[str, Any] = {"level": "episode", "mean": "geometric"}


def is_bypassed(given: Given) -> bool:
    """Whether ratios are to the policy that sampled."""
    return not given.get("actor.use_decoupled_loss") and not given.get("actor.recompute_logprob")


def default_correction(given: Given) -> dict[str, Any]:
    """The correction of AReaL; none if its own has no counterpart."""
    return {_KEY: "none", **correction(None, given).ours}


def correction(_value: Any, given: Given) -> Meaning:
    """The correction; the same for each of the keys."""
    if is_bypassed(given):
        return _told("bypass", "ratios are to the policy that sampled")
    if not given.get("actor.use_decoupled_loss"):
        return _told("none", "ratios are to the policy before the batch")
    try:
        how = _rejection(given)
        if how is None:
            return _told("none", "ratios are to the policy before the batch, and nothing weighs it by the sampler")
        return Meaning("taken", ours={_KEY: _corrected(**how)})
    except ConfigError as refused:
        return Meaning("left out", str(refused))


def _told(kind: str, note: str) -> Meaning:
    return Meaning("changed", note, {_KEY: kind})


def _rejection(given: Given) -> dict[str, Any] | None:
    """What `rejection_sampling` says, with AReaL's defaults. None: there is none."""
    named = {name: given[f"{SECTION}.{name}"] for name in _DEFAULTS if f"{SECTION}.{name}" in given}
    if named or SECTION in given:
        return {**_DEFAULTS, **named}
    cap, mode = next((given[name] for name in _CAPS if name in given), None), given.get(_MODE)
    if mode == "disabled" or (cap is None and mode is None):
        return None
    level, _, action = str(mode or "token_mask").partition("_")
    actions = {"mask": "mask", "truncate": "clamp"}
    if action not in actions:
        raise ConfigError(
            f"{mode!r} is not available here; there are token_ and sequence_, mask and truncate; disabled"
        )
    older: dict[str, Any] = {"level": level, "action": actions[action], "upper": 5.0 if cap is None else cap}
    return {**_DEFAULTS, **older}


def _corrected(level: str, action: str, metric: str, agg: str, upper: float, lower: float | None) -> Any:
    is_token = level == "token"
    if action == "clamp":
        if metric != "ratio" or not (is_token or agg == "mean"):
            raise ConfigError(f"a weight is clamped by itself here, and not by metric={metric} with agg={agg}")
        return {"kind": "truncate", "cap": upper, "floor": lower or 0.0, **({} if is_token else _GEOMETRIC)}
    if metric in ("kl_k2", "kl_k3"):
        if lower is not None:
            raise ConfigError("divergences have no lower bound here")
        how: dict[str, Any] = {} if is_token else {"level": "episode", "combine": agg}
        return [{"kind": "divergence", "estimator": metric[3:], "high": upper, **how}, _UNBOUNDED]
    if not is_token and agg == "max":
        raise ConfigError(f"agg=max of metric={metric} has no counterpart here; there are mean, sum")
    bounds: dict[str, Any]
    if metric == "ratio":
        bounds = {"low": lower or 0.0, "high": upper}
    elif metric == "kl_k1":
        bounds = {"low": 0.0 if lower is None else math.exp(lower), "high": math.exp(upper)}
    else:
        raise ConfigError(f"metric={metric!r} is not available here; there are ratio, kl_k1, kl_k2, kl_k3")
    if is_token:
        return {"kind": "mask", **bounds}
    if metric == "ratio" and agg == "mean":
        return {"kind": "mask", **bounds, **_GEOMETRIC}
    # the bound and the weight are of different ratios
    of_bound = _GEOMETRIC if agg == "mean" else {"level": "episode"}
    weight = {**_UNBOUNDED, **_GEOMETRIC} if metric == "ratio" else _UNBOUNDED
    return [{"kind": "mask", "weighs": False, **bounds, **of_bound}, weight]
