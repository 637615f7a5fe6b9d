"""Maps a trajectory to recorded turns: which of them are trained, and with which rewards.

Knows: choices by turn id, the edges of a record.  Knows not: tokens except their number, groups, recorders.
Invariants: only recorded tokens are trained, whatever the trajectory's messages contain; a recorded turn that no choice
names is left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ludus.compat.art.choice import sampled_by, to_json, turn_id
from ludus.compat.art.trajectory import Trajectory
from ludus.episodes.reward import Result, leaves
from ludus.errors import UserError
from ludus.types import Message, SessionRecord


def named_turns(trajectory: Trajectory, model: str | None = None) -> tuple[str, ...]:
    """Ids of the recorded turns of the choices in all histories, each once.

    model: the trained model; choices sampled by another one are context. None: all choices are the trained model's.
    Raises UserError if there are choices and none of them was recorded.
    """
    named = tuple(dict.fromkeys(found for history in trajectory.histories() for found in history.turn_ids(model)))
    choices = [each for history in trajectory.histories() for each in history.choices()]
    if choices and not named:
        others = sorted({found for found in map(sampled_by, choices) if found not in (None, model)})
        by_others = f", as {', '.join(map(repr, others))}," if others else ""
        raise UserError(
            f"none of the {len(choices)} choices of a trajectory names a recorded turn (`turn_id`): they were made by "
            f"hand or by another model{by_others} and tokens without a record cannot be trained. Ask the model through "
            "`model.openai_client()` and append the choices it returns, or append messages as mappings"
        )
    return named


def num_foreign_choices(trajectory: Trajectory, model: str | None = None) -> int:
    """Number of choices sampled by another model, of Ludus or not; they are context. model: as for `named_turns`."""
    return sum(len(history.choices()) - len(history.turn_ids(model)) for history in trajectory.histories())


def edited_turns(record: SessionRecord, trajectory: Trajectory) -> list[str]:
    """Ids of turns whose choice differs from what was sampled, because its text or calls were edited."""
    sampled = {turn.id: _said(turn.reply) for turn in record.turns}
    choices = (each for history in trajectory.histories() for each in history.choices())
    named = ((turn_id(each) or "", to_json(each)["message"]) for each in choices)
    known = ((found, message, sampled[found]) for found, message in named if found in sampled)
    return [found for found, message, before in known if _said_now(message, before) != before]


def _said(reply: Message) -> tuple[object, ...]:
    calls = [(call.name, _value(call.arguments)) for call in reply.tool_calls]
    return (reply.content or "").strip(), calls, (reply.reasoning or "").strip()


def _said_now(message: Mapping[str, Any], sampled: tuple[object, ...]) -> tuple[object, ...]:
    """sampled: of it is the thinking where the message has none: clients and agents drop it."""
    called = [each.get("function") or {} for each in message.get("tool_calls") or ()]
    calls = [(each.get("name"), _value(each.get("arguments"))) for each in called]
    thinking = message.get("reasoning_content")
    return (message.get("content") or "").strip(), calls, sampled[-1] if thinking is None else thinking.strip()


def _value(arguments: object) -> object:
    """The value of a call's arguments, independent of the JSON's format."""
    try:
        return json.loads(str(arguments))
    except ValueError:
        return arguments


def claim_trajectory(record: SessionRecord, trajectory: Trajectory, model: str | None = None) -> Result:
    """The trajectory's reward, assigned to the turns of `record` that it names; all other turns are left out.

    The reward is given to the last turns that it names, from which credit goes back to earlier ones.
    model: as for `named_turns`.  Raises UserError if it names a turn that is not in the record.
    """
    named = named_turns(trajectory, model)
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
    """The error for a choice whose turn is not recorded."""
    return UserError(
        f"a choice names the turn {wanted!r}, and no record here holds it: it was sampled by another model or backend, "
        "or its record was deleted"
    )
