"""What a trajectory says about recorded turns: which of them are trained, and what they are worth.

Knows: choices by turn id, the edges of a record.  Knows not: tokens beyond their number, groups, who recorded.
Invariants: what is trained is what was recorded, whatever the trajectory's messages say; a recorded turn that no choice
names is left out.
"""

from __future__ import annotations

from ludus.compat.art.choice import turn_id
from ludus.compat.art.trajectory import Trajectory
from ludus.episodes.reward import Result, leaves
from ludus.errors import UserError
from ludus.types import SessionRecord


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


def unknown_turn(wanted: str) -> UserError:
    """The error for a choice that names a turn nobody has."""
    return UserError(
        f"a choice names the turn {wanted!r}, and no record here holds it: it was sampled by another model or backend, "
        "or its record was deleted"
    )
