"""An episode's turns and tokens as a person reads them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ludus.runs.view import printable, view_tokens, view_turns
from ludus.types import Episode, Message, Sampled


def _utf8(ids: Sequence[int]) -> str:
    """A tokenizer whose tokens are single bytes."""
    return bytes(ids).decode("utf-8", errors="replace")


def test_a_turn_shows_only_what_was_new(make_episode: Callable[..., Episode]) -> None:
    """The first turn shows the whole prompt, later ones what came after the reply before."""
    views = view_turns(make_episode(1, num_turns=3), decode=None, credit={})
    assert [[message.role for message in view.new_messages] for view in views] == [
        ["system", "user"],
        ["user"],
        ["user"],
    ]


def test_a_changed_history_is_shown_in_full(make_episode: Callable[..., Episode]) -> None:
    """When an earlier message was edited, the turn shows all it was given."""
    episode = make_episode(1, num_turns=2)
    first, second = episode.session.turns
    edited = replace(second, messages=(Message("system", "other"), *second.messages[1:]))
    changed = replace(episode, session=replace(episode.session, turns=(first, edited)))
    assert view_turns(changed, decode=None, credit={})[1].new_messages == edited.messages


def test_credit_is_an_advantage_or_a_mask(make_episode: Callable[..., Episode]) -> None:
    """Each turn shows its own reward, and its advantage or the reason why it was masked."""
    episode = make_episode(1, num_turns=3, reward=0.5)
    first, second, _ = (turn.id for turn in episode.session.turns)
    views = view_turns(episode, decode=None, credit={first: 0.25, second: "no_credit"})
    assert [view.advantage for view in views] == [0.25, None, None]
    assert [view.mask for view in views] == [None, "no_credit", None]
    assert [view.reward for view in views] == [None, None, 0.5]


def test_token_texts_join_to_the_text(make_episode: Callable[..., Episode]) -> None:
    """A character split over tokens belongs to the last of them, and no text is lost or doubled."""
    ids = tuple("hé€😀!".encode())
    turn = make_episode(1).session.turns[0]
    turn = replace(turn, sampled=Sampled(ids, (-0.5,) * len(ids), (3,) * len(ids), "stop"))
    tokens = view_tokens(turn, _utf8)
    assert "".join(token.text for token in tokens) == "hé€😀!"
    assert [token.text for token in tokens[:3]] == ["h", "", "é"]
    assert tokens[0].version == 3


def test_broken_text_at_the_end_is_shown(make_episode: Callable[..., Episode]) -> None:
    """A reply cut inside a character still shows that something is there."""
    turn = make_episode(1).session.turns[0]
    turn = replace(turn, sampled=Sampled((104, 0xE2), (-0.5, -0.5), (0, 0), "length"))
    assert [token.text for token in view_tokens(turn, _utf8)] == ["h", "\ufffd"]


def test_a_terminal_obeys_nothing_that_was_said() -> None:
    """Lines, tabs and letters of any kind stay; what moves a cursor, rings or changes a title is spelled."""
    assert printable("a\tb\nü😀\u200f") == "a\tb\nü😀\u200f"
    assert printable("reward \u202e0.1\u2066") == "reward \\u202e0.1\\u2066"
    assert printable("\x1b[2J\x07\r\x9b1m\x7f") == "\\x1b[2J\\x07\\x0d\\x9b1m\\x7f"
    assert printable("half \ud83d") == "half \\ud83d"
