"""What a trajectory says of recorded turns: which are trained, what they are worth, records of several sessions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ludus.algorithms.returns import turn_returns
from ludus.compat.art.choice import Choice
from ludus.compat.art.claim import claim_trajectory, edited_turns, named_turns, num_foreign_choices
from ludus.compat.art.trajectory import History, Trajectory
from ludus.episodes.claim import SessionTurns, join_records
from ludus.episodes.graph import SessionGraph
from ludus.errors import UserError
from ludus.types import Message, Sampled, Sampling, SessionRecord


def record(session_id: str, **edges: str | None) -> SessionRecord:
    """A session whose turns extend and follow the turns that they name; a root has a prompt of its own."""
    graph = SessionGraph(session_id)
    for number, (name, before) in enumerate(edges.items()):
        prompt = (900 + number,) if before is None else (*graph.path_ids(f"{session_id}.{before}"), 500 + number)
        graph.add_turn(
            turn_id=f"{session_id}.{name}",
            prompt_ids=prompt,
            prefix=None if before is None else f"{session_id}.{before}",
            follows=None if before is None else f"{session_id}.{before}",
            fork=None,
            messages=(Message("user", "go"),),
            reply=Message("assistant", name),
            sampled=Sampled((10 + number, 20 + number), (-1.0, -2.0), (0, 0), "stop"),
            sampling=Sampling(),
        )
    return graph.snapshot()


def choice(turn_id: str | None) -> Choice:
    return Choice.model_validate({"message": {"content": "x"}, "finish_reason": "stop", "turn_id": turn_id})


def trajectory(*turn_ids: str | None, also: tuple[str, ...] = (), **fields: Any) -> Trajectory:
    histories = [History(messages_and_choices=[choice(each) for each in also])] if also else []
    return Trajectory(
        messages_and_choices=[choice(each) for each in turn_ids], additional_histories=histories, **fields
    )


def returns(found: SessionRecord, rewards: dict[str, float]) -> dict[str, float | None]:
    return turn_returns({turn.id: turn.follows for turn in found.turns}, rewards)


def test_every_named_turn_is_worth_the_reward() -> None:
    """Along a line and on two branches alike; what no choice names is left out, whole, and worth nothing by itself."""
    found = record("s", a=None, b="a", c="b", d="a", e="d")
    result = claim_trajectory(found, trajectory("s.a", "s.b", also=("s.d",), reward=2.0, metrics={"won": True}))
    assert result.reward == {"s.b": 2.0, "s.d": 2.0}
    worth = returns(found, result.reward)
    assert [worth[f"s.{name}"] for name in "abcde"] == [2.0, 2.0, None, 2.0, None]
    assert result.left_out == {"s.c": (0, 1), "s.e": (0, 1)} and result.metrics == {"won": 1.0}


def test_a_reward_passes_over_turns_that_are_left_out() -> None:
    """A retry between two named turns takes nothing of the reward away, and is not trained."""
    found = record("s", a=None, b="a", c="b")
    result = claim_trajectory(found, trajectory("s.a", "s.c", reward=1.0))
    assert returns(found, result.reward)["s.a"] == 1.0 and result.left_out == {"s.b": (0, 1)}


def test_turns_of_several_sessions_are_one_record() -> None:
    """Tokens, paths and edges stay; each session's roots are roots."""
    one, two = record("s", a=None, b="a"), record("t", a=None)
    joined = join_records("all", [SessionTurns(one, None), SessionTurns(two, None)])
    assert [turn.id for turn in joined.turns] == ["s.a", "s.b", "t.a"]
    for source in (one, two):
        for turn in source.turns:
            moved = next(each for each in joined.turns if each.id == turn.id)
            assert joined.path_ids(moved.node) == source.path_ids(turn.node)
            assert (moved.prefix, moved.follows, moved.sampled) == (turn.prefix, turn.follows, turn.sampled)
    assert claim_trajectory(joined, trajectory("s.b", "t.a", reward=1.0)).reward == {"s.b": 1.0, "t.a": 1.0}


def test_what_stays_behind_is_context() -> None:
    """Of a session with other trajectories' turns only the own ones come along; the tokens before them are context."""
    source = record("s", a=None, b="a", c="b", d="a")
    joined = join_records("mine", [SessionTurns(source, frozenset({"s.c", "s.a"}))])
    first, last = joined.turns
    assert (first.id, last.id) == ("s.a", "s.c")
    assert joined.path_ids(last.node) == source.path_ids(source.turns[2].node)
    assert (last.prefix, last.follows) == ("s.a", "s.a")
    assert [node.turn_id for node in joined.nodes if node.turn_id is not None] == ["s.a", "s.c"]
    assert joined.num_sampled_tokens == 4
    alone = join_records("mine", [SessionTurns(source, frozenset({"s.c"}))]).turns[0]
    assert (alone.prefix, alone.follows, alone.fork) == (None, None, None)


@pytest.mark.parametrize(
    ("said", "is_edited"),
    [
        ({"content": "a"}, False),
        ({"content": " a\n", "reasoning_content": "Hm."}, False),
        ({"content": "b"}, True),
        ({"content": "a", "reasoning_content": "Hm, no."}, True),
        ({"content": "a", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]}, True),
    ],
)
def test_a_choice_that_says_something_else_is_edited(said: dict[str, Any], is_edited: bool) -> None:
    """In its text, its calls or its thinking; thinking that a client has dropped is no edit."""
    found = record("s", a=None)
    turn = replace(found.turns[0], reply=Message("assistant", "a", reasoning="Hm."))
    edited = Choice.model_validate({"message": said, "finish_reason": "stop", "turn_id": "s.a"})
    played = Trajectory(messages_and_choices=[edited])
    assert edited_turns(replace(found, turns=(turn,)), played) == (["s.a"] if is_edited else [])


def test_choices_that_nobody_recorded() -> None:
    """Beside recorded ones they are context; alone they cannot be trained, and a turn nobody has is named."""
    mixed = trajectory("s.a", None)
    assert named_turns(mixed) == ("s.a",) and num_foreign_choices(mixed) == 1
    with pytest.raises(UserError, match=r"none of the 1 choices .* names a recorded turn"):
        named_turns(trajectory(None))
    assert named_turns(Trajectory(messages_and_choices=[{"role": "user", "content": "x"}])) == ()
    with pytest.raises(UserError, match=r"names the turn 's\.z', and no record here holds it"):
        claim_trajectory(record("s", a=None), trajectory("s.a", "s.z"))
