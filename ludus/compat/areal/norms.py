"""Translates AReaL's normalisations of rewards and of advantages, which must be read together.

Knows: names and plain values, AReaL's defaults.  Knows not: how an advantage is computed.
AReaL normalises rewards in their group or over the batch, then the advantages of all tokens of the batch. Where a
section is missing, nothing is normalised.
"""

from __future__ import annotations

from collections.abc import Mapping

from ludus.compat.keys import Given, Meaning

REWARDS, ADVANTAGES = "actor.reward_norm", "actor.adv_norm"
Levels = tuple[str | None, str | None]
"""What mean and deviation are taken over: group, batch. None: they are not taken."""
_NONE: Levels = (None, None)
_BATCH: Levels = ("batch", "batch")

_IN_GROUPS: Mapping[Levels, Mapping[str, str]] = {
    _NONE: {"baseline": "none", "scale": "none"},
    ("group", "group"): {"baseline": "mean", "scale": "std"},
    ("group", None): {"baseline": "mean", "scale": "none"},
    ("group", "batch"): {"baseline": "mean", "scale": "batch"},
    _BATCH: {"kind": "whitened", "over": "episodes"},
}
"""`algorithm.advantage` by the levels of rewards, where advantages are taken as they are."""
# Whatever was subtracted from all rewards of the batch, or divided them, cancels out over its tokens.
_WHITENED: Mapping[Levels, Mapping[str, str]] = {
    **{each: {"kind": "whitened"} for each in (_NONE, _BATCH, ("batch", None), (None, "batch"))},
    ("group", "group"): {"kind": "whitened", "baseline": "mean", "scale": "std"},
    **{each: {"kind": "whitened", "baseline": "mean"} for each in (("group", None), ("group", "batch"))},
}
"""The same where they are normalised over the tokens of the batch."""
_GRPO = {"baseline": "mean", "scale": "std"}


def is_whitened(given: Given) -> bool:
    """Whether advantages are normalised over the tokens of the batch."""
    return _levels(ADVANTAGES, given) == _BATCH


def of_rewards(_value: object, given: Given) -> Meaning:
    """A key of the rewards' section."""
    ours = {f"algorithm.advantage.{name}": value for name, value in _advantage(given).items()}
    if "batch" in ours.values():
        return Meaning("changed", "divided by the deviation from the mean of the batch, not of each group", ours)
    if _levels(REWARDS, given) not in _table(given):
        return Meaning("changed", "GRPO's: over the members of a group, by id", ours)
    return Meaning("taken", "over the members of a group, by id" if "mean" in ours.values() else "", ours)


def of_advantages(value: object, given: Given) -> Meaning:
    """A key of the advantages' section."""
    if _levels(ADVANTAGES, given) not in (_NONE, _BATCH):
        return Meaning("left out", "advantages are normalised over the batch, mean_level and std_level, or not at all")
    return Meaning("taken", ours=of_rewards(value, given).ours)


def cancels_factor(given: Given) -> bool:
    """Whether a factor on all rewards cancels out in the advantage."""
    how = _advantage(given)
    return "kind" in how or how["scale"] != "none"


def cancels_summand(given: Given) -> bool:
    """Whether a number that is added to all rewards cancels out in the advantage."""
    how = _advantage(given)
    return "kind" in how or how["baseline"] != "none"


def _advantage(given: Given) -> dict[str, str]:
    how = dict(_table(given).get(_levels(REWARDS, given), _GRPO))
    if "kind" not in how and how["baseline"] == "mean" and given.get(f"{REWARDS}.mean_leave1out"):
        how["baseline"] = "leave_one_out"  # over the tokens of the batch its factor n / (n - 1) cancels out
    return how


def _table(given: Given) -> Mapping[Levels, Mapping[str, str]]:
    return _WHITENED if is_whitened(given) else _IN_GROUPS


def _levels(section: str, given: Given) -> Levels:
    """The levels of a section; one that it does not name is the batch, as in AReaL."""
    if given.get(section) is None and not any(name.startswith(f"{section}.") for name in given):
        return _NONE
    mean, std = (given.get(f"{section}.{name}", "batch") for name in ("mean_level", "std_level"))
    return mean, std
