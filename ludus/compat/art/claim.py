"""What a trajectory says about recorded turns: which of them are trained, and what they are worth.

Knows: choices by turn id, the edges of a record.  Knows not: tokens beyond their number, groups, who recorded.
Invariants: what is trained is what was recorded, whatever the trajectory's messages say; a recorded turn that no choice
names is left out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from ludus.compat.art.choice import turn_id
from ludus.compat.art.trajectory import Trajectory
from ludus.episodes.reward import Result, leaves
from ludus.errors import UserError
from ludus.types import Node, SessionRecord, Turn


@dataclass(frozen=True, slots=True)
class Part:
    """What of one session belongs to a trajectory."""

    record: SessionRecord
    turn_ids: Collection[str] | None
    """None: all of it."""


def named_turns(trajectory: Trajectory) -> tuple[str, ...]:
    """The recorded turns that the choices of all histories name, each once.

    Raises UserError where there are choices and none of them was recorded.
    """
    choices = [choice for history in trajectory.histories() for choice in history.choices()]
    named = tuple(dict.fromkeys(found for found in map(turn_id, choices) if found is not None))
    if choices and not named:
        raise UserError(
            f"none of the {len(choices)} choices of a trajectory names a recorded turn (`turn_id`): they were made by "
            "hand or by another model, and tokens that nobody recorded cannot be trained. Ask the model through "
            "`model.openai_client()` and append the choices it returns, or append messages as mappings"
        )
    return named


def num_foreign_choices(trajectory: Trajectory) -> int:
    """Choices that no model of Ludus sampled; they are context."""
    return sum(turn_id(choice) is None for history in trajectory.histories() for choice in history.choices())


def claim_trajectory(record: SessionRecord, trajectory: Trajectory) -> Result:
    """The trajectory's reward for each turn of `record` that it names; all other turns are left out.

    The reward goes to the last turns it names, and from there back to those that led to them.
    Raises UserError if it names a turn that the record does not hold.
    """
    named = named_turns(trajectory)
    known = {turn.id for turn in record.turns}
    unknown = [each for each in named if each not in known]
    if unknown:
        raise unknown_turn(unknown[0])
    others = [turn for turn in record.turns if turn.id not in named]
    last = leaves(record.turns, without={turn.id for turn in others}, all_chosen=True) if named else ()
    return Result(
        reward=dict.fromkeys(last, trajectory.reward),
        metrics={name: float(value) for name, value in trajectory.metrics.items()},
        metadata=dict(trajectory.metadata),
        left_out={turn.id: tuple(range(len(turn.sampled.token_ids))) for turn in others},
    )


def join_records(record_id: str, parts: Sequence[Part]) -> SessionRecord:
    """One record of what belongs together; paths, edges and order within each session stay.

    Where a turn stays behind, its tokens are context of those that extend them, and edges pass over it.
    """
    nodes: list[Node] = []
    turns: list[Turn] = []
    for part in parts:
        wanted = _wanted(part)
        on_paths = _on_paths(part.record, [turn for turn in part.record.turns if turn.id in wanted])
        places: dict[int, int] = {}
        for old in sorted(on_paths):  # a parent precedes its children
            node = part.record.nodes[old]
            places[old] = len(nodes)
            parent = None if node.parent is None else places[node.parent]
            kept_id = node.turn_id if node.turn_id in wanted else None
            nodes.append(Node(parent, node.token_ids, kept_id))
        turns.extend(_moved(part.record, wanted, places))
    return SessionRecord(record_id, tuple(nodes), tuple(turns))


def unknown_turn(wanted: str) -> UserError:
    """The error for a choice that names a turn nobody has."""
    return UserError(
        f"a choice names the turn {wanted!r}, and no record here holds it: it was sampled by another model or backend, "
        "or its record was deleted"
    )


def _wanted(part: Part) -> frozenset[str]:
    return frozenset(turn.id for turn in part.record.turns if part.turn_ids is None or turn.id in part.turn_ids)


def _on_paths(record: SessionRecord, turns: Sequence[Turn]) -> set[int]:
    found: set[int] = set()
    for turn in turns:
        node: int | None = turn.node
        while node is not None and node not in found:
            found.add(node)
            node = record.nodes[node].parent
    return found


def _moved(record: SessionRecord, wanted: frozenset[str], places: Mapping[int, int]) -> list[Turn]:
    by_id = {turn.id: turn for turn in record.turns}
    moved = []
    for turn in record.turns:
        if turn.id not in wanted:
            continue
        prefix, follows = turn.prefix, turn.follows
        while prefix is not None and prefix not in wanted:
            prefix = by_id[prefix].prefix
        while follows is not None and follows not in wanted:
            follows = by_id[follows].follows
        fork = turn.fork if follows is not None else None
        moved.append(replace(turn, node=places[turn.node], prefix=prefix, follows=follows, fork=fork))
    return moved
