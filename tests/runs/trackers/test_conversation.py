"""What was said in an episode is told once, in its order."""

from __future__ import annotations

from dataclasses import replace

from ludus.runs.trackers.conversation import conversation
from ludus.runs.trackers.tree import MAX_CHARS
from ludus.types import Message
from tests.runs.conftest import episode_of, rich_episode


def test_each_message_is_told_once() -> None:
    """A history that grows turn by turn is not told again with every turn."""
    episode = episode_of(3, num_turns=4)
    last = episode.session.turns[-1]
    assert list(conversation(episode)) == [(message.role, message.content) for message in (*last.messages, last.reply)]


def test_calls_agents_and_changed_histories() -> None:
    """A call is a line of its message; who answered is named; what was told anew is told again."""
    said = conversation(rich_episode())
    assert [who for who, _ in said] == [
        "user",
        "assistant",
        "assistant",
        "user",
        "assistant",
        "tool",
        "assistant (helper)",
    ]
    assert said[1][1] == 'add({"a": 1,  "b": 2})'


def test_long_texts_lose_their_middle() -> None:
    """As in traces."""
    episode = episode_of(3, num_turns=1)
    turn = replace(episode.session.turns[0], reply=Message("assistant", "x" * 100_000))
    said = conversation(replace(episode, session=replace(episode.session, turns=(turn,))))
    assert len(said[-1][1]) < MAX_CHARS + 100 and "80000 characters" in said[-1][1]
