"""An episode prepared for display: turns, what was new in each, and every sampled token with its probability.

Knows: the records of `ludus.types`, a function that turns ids into text.  Knows not: HTML, terminals, tokenizers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ludus.types import Episode, Message, Turn

Decode = Callable[[Sequence[int]], str]

# Control characters except line breaks and tabs; what turns the direction of all that comes after it in its line; and
# lone surrogates, which cannot be encoded. `visible` of web/src/format.ts does the same for the page.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_LOOK_BACK = 4
"""Ids decoded together with a token: enough for a character of 4 bytes, and for decoders that strip a first space."""


def printable(text: str) -> str:
    """The text made safe for a terminal: control sequences, changes of direction and lone surrogates are escaped."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1] if found[0] > "\xff" else f"\\x{ord(found[0]):02x}", text)


def encodable(text: str) -> str:
    """The text with lone surrogates, which UTF-8 cannot encode, replaced by `?`."""
    return text.encode(errors="replace").decode()


@dataclass(frozen=True, slots=True)
class TokenView:
    """One sampled token."""

    id: int
    text: str
    """'' if the token is only the beginning of a character; the last token of the character has its text."""
    logprob: float
    version: int

    @property
    def probability(self) -> float:
        return math.exp(min(self.logprob, 0.0))


@dataclass(frozen=True, slots=True)
class TurnView:
    """One turn, with what is shown beside it."""

    turn: Turn
    new_messages: tuple[Message, ...]
    """Messages of the prompt that no earlier turn on this path showed or answered."""
    tokens: tuple[TokenView, ...]
    reward: float | None
    """None: the turn has no reward of its own."""
    advantage: float | None
    """None: it was masked, or its use in training is unknown."""
    mask: str | None
    """Why its tokens were not trained. None: they were, or it is unknown."""

    @property
    def ended_by(self) -> str:
        """What ended the answer: `stop`, `length`, or why it was aborted."""
        return self.turn.abort_cause or self.turn.sampled.stop_reason

    @property
    def mean_logprob(self) -> float:
        """Mean logprob of its tokens; NaN if it sampled none."""
        return sum(token.logprob for token in self.tokens) / len(self.tokens) if self.tokens else math.nan


def view_turns(episode: Episode, *, decode: Decode | None, credit: Mapping[str, float | str]) -> tuple[TurnView, ...]:
    """The turns of an episode, in order. decode: None: ids are shown instead of text."""
    by_id = {turn.id: turn for turn in episode.session.turns}
    if episode.is_eval:
        credit = dict.fromkeys(by_id, "evaluation")
    views = []
    for turn in episode.session.turns:
        value = credit.get(turn.id)
        views.append(
            TurnView(
                turn=turn,
                new_messages=new_messages(turn, by_id.get(turn.follows or "")),
                tokens=view_tokens(turn, decode),
                reward=episode.rewards.get(turn.id),
                advantage=None if isinstance(value, str) else value,
                mask=value if isinstance(value, str) else None,
            )
        )
    return tuple(views)


def view_tokens(turn: Turn, decode: Decode | None) -> tuple[TokenView, ...]:
    """The sampled tokens of a turn, each with its piece of the text."""
    sampled = turn.sampled
    texts = [f"{token} " for token in sampled.token_ids] if decode is None else token_pieces(sampled.token_ids, decode)
    rows = zip(sampled.token_ids, texts, sampled.logprobs, sampled.versions, strict=True)
    return tuple(TokenView(*row) for row in rows)


def new_messages(turn: Turn, earlier: Turn | None) -> tuple[Message, ...]:
    """The messages after the earlier turn's reply; all messages if the history was changed."""
    if earlier is None:
        return turn.messages
    num_seen = len(earlier.messages)
    is_continued = turn.messages[:num_seen] == earlier.messages and len(turn.messages) > num_seen
    is_answer_next = is_continued and turn.messages[num_seen].role == "assistant"
    return turn.messages[num_seen + 1 :] if is_answer_next else turn.messages


def message_text(message: Message) -> str:
    """The message for display: its content, and a line for each tool call."""
    calls = [f"{call.name}({call.arguments})" for call in message.tool_calls]
    return "\n".join(filter(None, (message.content, *calls)))


def token_pieces(ids: Sequence[int], decode: Decode) -> list[str]:
    """Text of each token; a character split over several tokens belongs to the last of them."""
    pieces: list[str] = []
    start = 0  # first id whose text has not been given out
    for idx in range(len(ids)):
        back = max(0, start - _LOOK_BACK)
        before, after = decode(ids[back:start]), decode(ids[back : idx + 1])
        is_split = after.endswith("\ufffd") and idx + 1 < len(ids)
        pieces.append("" if is_split else after[len(before) :])
        start = start if is_split else idx + 1
    return pieces
