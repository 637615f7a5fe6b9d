"""Converts groups of trajectories to groups of episodes: the records of their choices, with their rewards.

Knows: trajectories, records, rewards.  Knows not: advantages, batches, weights.
Invariants: ids are derived from positions, so the order in a step is that of the given groups; a recorded turn is in at
most one trajectory of a step.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from ludus.compat.art.claim import claim_trajectory, edited_turns, named_turns, num_foreign_choices
from ludus.compat.art.group import TrajectoryGroup
from ludus.compat.art.trajectory import Trajectory
from ludus.compat.art.turns import TurnRecords
from ludus.episodes.claim import join_records
from ludus.episodes.episode import finish
from ludus.episodes.outcome import Returned
from ludus.episodes.spec import SessionSpec
from ludus.errors import UserError
from ludus.rollout.groups import TakenGroups
from ludus.types import Episode, Group

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Settled:
    """The episodes of one step."""

    taken: TakenGroups
    turns: dict[str, Episode]
    """The episode of each turn, by turn id."""
    num_foreign_choices: int
    """Number of choices of other models, which are context."""
    num_edited_choices: int
    """Number of this model's choices that were edited; the sampled tokens are trained."""
    num_empty: int
    """Number of trajectories without a recorded choice."""


def settle_groups(groups: Sequence[TrajectoryGroup], records: TurnRecords, *, step: int) -> Settled:
    """The episodes of step `step`; also sets the versions of the weights on the trajectories.

    Raises UserError for a choice without a record, a turn in two trajectories, or a reward that is no number.
    """
    members = _members(groups, step, records.model)
    owners: dict[str, _Member] = {}
    for member in members:
        for turn_id in member.named:
            other = owners.setdefault(turn_id, member)
            if other is not member:
                raise UserError(
                    f"{other.where} and {member.where} both name the turn {turn_id!r}; a sampled token is trained "
                    "once. Put branches of one rollout into additional_histories of one trajectory"
                )
    built: dict[str, Group] = {}
    turns: dict[str, Episode] = {}
    edited: list[str] = []
    for member in (member for member in members if member.named):
        others = (owners.keys() - set(member.named)) | turns.keys()
        episode = _episode(member, records, others)
        edited += [f"{turn} of {member.where}" for turn in edited_turns(episode.session, member.trajectory)]
        before = built[episode.group_id].episodes if episode.group_id in built else ()
        built[episode.group_id] = Group(episode.group_id, episode.task_id, (*before, episode))
        turns.update({turn.id: episode for turn in episode.session.turns})
    num_empty = sum(not member.named for member in members)
    if num_empty:
        logger.warning("%d trajectories of step %d have no recorded choice: they count nowhere", num_empty, step)
    if edited:
        said = "%d choices of step %d were changed since they were sampled, %s first; what was sampled is trained"
        logger.warning(f"{said}: append a message where your own text is to stand", len(edited), step, edited[0])
    return Settled(
        taken=TakenGroups(tuple(built.values()), records.take_failed()),
        turns=turns,
        num_foreign_choices=sum(num_foreign_choices(member.trajectory, records.model) for member in members),
        num_edited_choices=len(edited),
        num_empty=num_empty,
    )


@dataclass(frozen=True, slots=True)
class _Member:
    """A trajectory, and its position."""

    trajectory: Trajectory
    named: tuple[str, ...]
    spec: SessionSpec
    where: str


def _members(groups: Sequence[TrajectoryGroup], step: int, model: str) -> list[_Member]:
    members = []
    for group_idx, group in enumerate(groups):
        group_id = f"step{step:06d}-g{group_idx:04d}"
        task_id = str(group.metadata.get("task_id", group_id))
        for member_idx, trajectory in enumerate(group):
            spec = SessionSpec(f"{group_id}-m{member_idx:03d}", task_id, group_id)
            where = f"trajectory {member_idx} of group {group_idx}"
            members.append(_Member(trajectory, named_turns(trajectory, model), spec, where))
    return members


def _episode(member: _Member, records: TurnRecords, others: Collection[str]) -> Episode:
    trajectory = member.trajectory
    record = join_records(str(member.spec.id), records.parts(member.named, others=others))
    versions = [version for turn in record.turns for version in turn.sampled.versions]
    trajectory.initial_policy_version, trajectory.final_policy_version = min(versions), max(versions)
    claimed = Returned(claim_trajectory(record, trajectory, records.model))
    episode = finish(member.spec, record, claimed, started_at=min(turn.started_at for turn in record.turns))
    if not episode.outcome.has_credit:
        raise UserError(f"{member.where}: {episode.outcome.reason}")
    return replace(episode, reward=trajectory.reward)
