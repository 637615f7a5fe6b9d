"""Replies as they grow, and the turn that each becomes, for the tests of all dialects."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from ludus.gateway.dialects.base import Answer
from ludus.text.parsers.base import ContentDelta, Delta, ReasoningDelta, ToolCallDelta, collect
from ludus.types import Message, Sampled, Sampling, Turn

NUM_PROMPT_TOKENS = 5
_TEXTS = {7: "a", 8: "\ufffd", 9: "é"}
texts = st.text('ab \né"{}\\', max_size=6)
values = st.dictionaries(st.sampled_from("xy"), st.one_of(st.integers(-9, 9), texts, st.booleans()), max_size=2)


@st.composite
def replies(draw: st.DrawFn, *, calls: bool = True) -> tuple[Delta, ...]:
    """Thinking or none, then text and calls in any order, each cut into deltas anywhere."""
    deltas: list[Delta] = []
    if calls and draw(st.booleans()):
        deltas += [ReasoningDelta(piece) for piece in draw(_pieces(draw(texts))) or [""]]
    num_calls = 0
    for is_call in draw(st.lists(st.booleans(), max_size=4)):
        if is_call and calls:
            arguments = json.dumps(draw(values), ensure_ascii=False, indent=draw(st.sampled_from((None, 1))))
            head, *rest = ["", *draw(_pieces(arguments))]
            deltas.append(ToolCallDelta(num_calls, f"call_{num_calls}", draw(st.sampled_from(("add", "sum"))), head))
            deltas += [ToolCallDelta(num_calls, None, None, piece) for piece in rest]
            num_calls += 1
        else:
            deltas += [ContentDelta(piece) for piece in draw(_pieces(draw(texts)))]
    return tuple(deltas)


@st.composite
def _pieces(draw: st.DrawFn, text: str) -> list[str]:
    cuts = sorted(draw(st.sets(st.integers(1, max(1, len(text) - 1)), max_size=3))) if len(text) > 1 else []
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True) if text[start:end]]


def turn_of(deltas: Sequence[Delta], **sampled: Any) -> Turn:
    fields: dict[str, Any] = {"stop_reason": "stop", "num_cached_tokens": 2} | sampled
    ended = Sampled((7, 8), (-0.5, -0.25), (0, 0), top_logprobs=(((7, -0.5), (9, -2.0)), ()), **fields)
    reply = collect(deltas).message
    return Turn(
        "chatcmpl-1", 1, None, None, None, (Message("user", "Guess."),), reply, ended, Sampling(), started_at=12
    )


def answer_of(*replies: Sequence[Delta], has_grown: bool = True, **sampled: Any) -> Answer:
    """The answer whose turns grew by these deltas. has_grown: the deltas are known."""
    turns = tuple(turn_of(deltas, **sampled) for deltas in replies)
    return Answer(turns, NUM_PROMPT_TOKENS, _TEXTS.__getitem__, tuple(map(tuple, replies)) if has_grown else ())


def events(raw: bytes) -> list[Any]:
    """The data of each event; a name beside it must be its type."""
    *frames, last = raw.decode().split("\n\n")
    assert last == ""
    written = []
    for frame in frames:
        *head, data = frame.split("\n")
        assert data.startswith("data: ")
        payload = data.removeprefix("data: ")
        written.append(payload if payload == "[DONE]" else json.loads(payload))
        assert not head or head == [f"event: {written[-1]['type']}"]
    return written
