"""A user's own loss and advantage: functions named by import strings, imported on their first call.

Knows: import strings, what the functions must return.  Knows not: torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from ludus.algorithms.base import Advantages, GroupReturns, LossInputs, LossMetrics, Needs, Rule, TokenAdvantages
from ludus.algorithms.metrics import sampling_metrics
from ludus.errors import UserError
from ludus.import_strings import import_object
from ludus.settings import Choice

if TYPE_CHECKING:
    from torch import Tensor


class OwnLossSettings(Choice):
    """A function of LossInputs, and of `kwargs`, that returns the loss of each token and what to show of it."""

    kind: Literal["own"] = "own"
    path: str
    """Import string: 'pkg.mod:function' or 'path/to/file.py:function'."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    needs: tuple[Literal["proximal", "reference", "entropy", "minibatch", "pairs", "sides", "flat_groups"], ...] = ()
    """What the function needs. `proximal`, `reference`: these logprobs. `entropy`: entropies with their gradient.
    `minibatch`: all tokens of a minibatch at once, with the numbers of their turns, episodes and groups. `pairs`: only
    groups with tokens of positive and of negative advantage. `sides`: sequences with one sign of advantage each.
    `flat_groups`: groups whose returns are all equal too, which are left out otherwise."""


class OwnAdvantageSettings(Choice):
    """A function of the GroupReturns of a batch, and of `kwargs`, that returns each group's advantages."""

    kind: Literal["own"] = "own"
    path: str
    """Import string: 'pkg.mod:function' or 'path/to/file.py:function'."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    members: int = Field(default=1, ge=1)
    """The smallest number of members that a group must have."""
    measured: tuple[Literal["values", "sampled_logprobs", "reference_logprobs", "logit_gradients"], ...] = ()
    """What must be measured of every trainable token; the function finds it in `GroupReturns.measured`, and may return
    `TokenAdvantages` for a turn."""


def own_loss(
    inputs: LossInputs, *, path: str, kwargs: Mapping[str, Any], needs: Sequence[str]
) -> tuple[Tensor, LossMetrics]:
    """What the user's function returns. Raises UserError unless that is a loss of each token, and metrics by name."""
    del needs  # already provided
    answer = import_object(path)(inputs, **kwargs)
    form = f"the loss {path!r} must return a tensor with the loss of each token and a dict of metrics"
    if not isinstance(answer, tuple) or len(answer) != 2 or not isinstance(answer[1], Mapping):
        raise UserError(f"{form}, got {type(answer).__name__}")
    loss_N, metrics = answer
    if getattr(loss_N, "shape", None) != inputs.logprobs_N.shape:
        shape = tuple(getattr(loss_N, "shape", ()))
        raise UserError(f"{form}: of shape {tuple(inputs.logprobs_N.shape)}, got {shape}; it is weighted and summed")
    if not loss_N.requires_grad:
        raise UserError(f"{form}: the loss does not depend on logprobs_N, so that it has no gradient")
    return loss_N, dict(metrics)


def own_advantages(
    groups: Sequence[GroupReturns], *, path: str, kwargs: Mapping[str, Any], members: int, measured: Sequence[str]
) -> list[Advantages]:
    """What the user's function returns. Raises UserError unless it has the same groups, members and turns as the
    returns and, if `measured` has a critic's values, targets for the critic."""
    for each in groups:
        if len(each.returns) < members:
            raise UserError(f"the advantage {path!r} needs {members} members, and group {each.group.id!r} has fewer")
    answer = list(import_object(path)(groups, **kwargs))
    if len(answer) != len(groups):
        raise UserError(f"the advantage {path!r} returned {len(answer)} groups of {len(groups)}")
    for each, advantages in zip(groups, answer, strict=True):
        _check_advantages(each, advantages, path)
        _check_tokens(each, advantages, path, has_critic="values" in measured)
    return answer


def _check_advantages(given: GroupReturns, advantages: Advantages, path: str) -> None:
    where = f"the advantage {path!r}, in group {given.group.id!r}:"
    if set(advantages) != set(given.returns):
        raise UserError(f"{where} members must be {sorted(given.returns)}, got {sorted(advantages)}")
    for episode_id, turns in given.returns.items():
        if set(advantages[episode_id]) != set(turns):
            got = sorted(advantages[episode_id])
            raise UserError(f"{where} turns of member {episode_id!r} must be {sorted(turns)}, got {got}")
        for turn_id, value in advantages[episode_id].items():
            if not (value is None or isinstance(value, TokenAdvantages) or math.isfinite(value)):
                raise UserError(f"{where} the advantage of turn {turn_id!r} must be a finite number, got {value}")


def _check_tokens(given: GroupReturns, advantages: Advantages, path: str, *, has_critic: bool) -> None:
    """Raises UserError unless a measured turn has an advantage for each measured token and, with a critic, targets."""
    credit = {turn_id: value for turns in advantages.values() for turn_id, value in turns.items()}
    for turn_id, numbers in given.measured.items():
        value = credit.get(turn_id)
        where = f"the advantage {path!r}, in group {given.group.id!r}: turn {turn_id!r}"
        is_whole = isinstance(value, TokenAdvantages) and None not in (value.values, value.value_targets)
        if has_critic and value is not None and not is_whole:
            got = "TokenAdvantages without them" if isinstance(value, TokenAdvantages) else value
            raise UserError(
                f"{where} must have TokenAdvantages with values and value_targets, from which the critic learns, or "
                f"None, got {got}; return them for every measured turn, or leave 'values' out of advantage.measured"
            )
        length = len(next(iter(numbers.columns().values())))
        if isinstance(value, TokenAdvantages) and len(value.advantages) != length:
            raise UserError(
                f"{where} must have the advantages of {length} tokens, those that were measured, got "
                f"{len(value.advantages)}"
            )


def _needs_of_loss(settings: OwnLossSettings) -> Needs:
    named: dict[str, Any] = dict.fromkeys(settings.needs, True)
    return Needs(**named)


OWN_LOSS = Rule(
    OwnLossSettings,
    own_loss,
    "the user's own",
    formula="{path}",
    needs=_needs_of_loss,
    metrics=sampling_metrics,
)
OWN_ADVANTAGE = Rule(
    OwnAdvantageSettings,
    own_advantages,
    "the user's own",
    formula="{path}",
    needs=lambda settings: Needs(members=settings.members, measured=frozenset(settings.measured)),
)
