"""What a trajectory means for recorded turns: which of them are trained, and what they are worth.

Knows: choices by turn id, the edges of a record.  Knows not: tokens beyond their number, groups, what recorded them.
Invariants: what is trained is what was recorded, whatever the trajectory's messages hold; a recorded turn that no
choice names is left out.
"""

from __future__ import annotations

from ludus.compat.art.trajectory import Trajectory
from ludus.episodes.reward import Result, leaves
from ludus.errors import UserError
from ludus.types import SessionRecord


def named_turns(trajectory: Trajectory) -> tuple[str, ...]:
    """The recorded turns that the choices of all histories name, each once.

    Raises UserError where there are choices and none of them was recorded.
    """
    named = tuple(dict.fromkeys(found for history in trajectory.histories() for found in history.turn_ids()))
    num_choices = sum(len(history.choices()) for history in trajectory.histories())
    if num_choices and not named:
        raise UserError(
            f"none of the {num_choices} choices of a trajectory names a recorded turn (`turn_id`): they were made by "
            "hand or by another model, and tokens without a record cannot be trained. Ask the model through "
            "`model.openai_client()` and append the choices it returns, or append messages as mappings"
        )
    return named


def num_foreign_choices(trajectory: Trajectory) -> int:
    """Choices that no model of Ludus sampled; they are context."""
    return sum(len(history.choices()) - len(history.turn_ids()) for history in trajectory.histories())


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


def unknown_turn(wanted: str) -> UserError:
    """The error for a choice that names a turn that is not there."""
    return UserError(
        f"a choice names the turn {wanted!r}, and no record here holds it: it was sampled by another model or backend, "
        "or its record was deleted"
    )
