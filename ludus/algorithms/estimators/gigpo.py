"""GiGPO: besides the episode's advantage, one for each step, compared with members that met the same situation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from ludus.algorithms.base import GroupReturns, Needs, Returns, Rule, are_equal, gives_nothing
from ludus.algorithms.estimators.group import Scale, group_advantages
from ludus.settings import Choice
from ludus.types import SessionRecord, Turn


class GigpoSettings(Choice):
    """The advantage of an episode in its group, plus that of a turn among turns that answer the same tokens."""

    kind: Literal["gigpo"] = "gigpo"
    step_weight: float = Field(default=1.0, ge=0)
    """Factor on the turn's advantage."""
    scale: Literal["std", "none"] = "std"
    """What both advantages are divided by."""


def gigpo_advantages(groups: Sequence[GroupReturns], *, step_weight: float, scale: Scale) -> list[Returns]:
    """A(m,t) = A_E(m) + step_weight A_S(m,t).

    A_E: the group advantage of the members' whole rewards, without discount. A_S: that of G(m,t) among the turns of the
    group that answer the same tokens; 0 if there is no other such turn. A turn answers the tokens since the turn before
    it, or the whole prompt. With `rollout.agent.turn_discount` below 1, G is the discounted return of the paper.
    Source: GiGPO (arXiv 2505.10978) eq. 3 and 5 to 8.
    """
    return [_of_group(each, step_weight, scale) for each in groups]


def _of_group(group: GroupReturns, step_weight: float, scale: Scale) -> Returns:
    means = group.means()
    means |= {each.id: each.reward for each in group.group.episodes if each.reward is not None and each.id in means}
    (of_episode,) = group_advantages([GroupReturns(group.group, group.map(lambda m, _t, _v: means[m]))], scale=scale)
    situations: dict[tuple[int, ...], dict[str, dict[str, float | None]]] = {}
    asked = {
        (episode.id, turn.id): _answered(episode.session, turn)
        for episode in group.group.episodes
        for turn in episode.session.turns
    }
    for member, turn_id, value in group.known():
        alike = situations.setdefault(asked[member, turn_id], {})
        alike[f"{member} {turn_id}"] = {turn_id: value}
    of_step: dict[str, float] = {}
    for alike in situations.values():
        (advantages,) = group_advantages([GroupReturns(group.group, alike)], scale=scale)
        of_step.update({name: value or 0.0 for name, turns in advantages.items() for value in turns.values()})

    def both(member: str, turn_id: str, _value: float) -> float:
        one, other = of_episode[member][turn_id] or 0.0, step_weight * of_step[f"{member} {turn_id}"]
        return 0.0 if are_equal((one, -other)) else one + other

    return group.map(both)


def _answered(record: SessionRecord, turn: Turn) -> tuple[int, ...]:
    """The tokens that the turn answers: those after the turn before it on its path, or after the beginning."""
    parts: list[tuple[int, ...]] = []
    at = record.nodes[turn.node].parent
    while at is not None and record.nodes[at].turn_id is None:
        parts.append(record.nodes[at].token_ids)
        at = record.nodes[at].parent
    return tuple(token for part in reversed(parts) for token in part)


GIGPO = Rule(
    GigpoSettings,
    gigpo_advantages,
    "GiGPO (arXiv 2505.10978) eq. 3 and 5 to 8",
    needs=lambda _: Needs(members=2),
    is_flat=gives_nothing(gigpo_advantages),
    flat="in which A is 0 for each turn",
    formula="A of the episode + {step_weight} A of the turn among those that answer the same, s: {scale}",
)
