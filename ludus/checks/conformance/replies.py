"""Converts answers of any protocol, streamed or not, to one common form, so that they can be compared.

Knows: the fields of the SDKs' objects.  Knows not: what they should hold.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

# Kinds of parts, by the protocols' own types of items, blocks and stream events.
KINDS = {"message": "text", "function_call": "call", "tool_use": "call", "reasoning": "thinking"}
RESPONSE_DELTAS = {
    "response.output_text.delta": "text",
    "response.reasoning_text.delta": "thinking",
    "response.function_call_arguments.delta": "call",
}
MESSAGE_DELTAS = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}


@dataclass(frozen=True, slots=True)
class Part:
    """Thinking, text, or a tool call."""

    kind: str
    text: str
    """For a call, its arguments."""
    name: str = ""
    """Name of the called tool."""
    id: str = field(default="", compare=False)
    """Id of a call."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The content of an answer."""

    parts: tuple[Part, ...]
    ended: str | None
    id: str = field(default="", compare=False)
    num_prompt: int = field(default=0, compare=False)
    """Tokens of the prompt. 0: unknown."""
    num_sampled: int = field(default=0, compare=False)
    raw: Any = field(default=None, compare=False, repr=False)
    """The SDK's object, or its events."""

    @property
    def kinds(self) -> list[str]:
        return [part.kind for part in self.parts]

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts if part.kind == "text")

    @property
    def reasoning(self) -> str:
        return "".join(part.text for part in self.parts if part.kind == "thinking")

    @property
    def calls(self) -> list[Part]:
        return [part for part in self.parts if part.kind == "call"]

    @property
    def names(self) -> list[str]:
        """Names of the called tools."""
        return [call.name for call in self.calls]

    @property
    def arguments(self) -> list[str]:
        return [call.text for call in self.calls]


def together(pieces: Iterable[tuple[str | int, Part]]) -> tuple[Part, ...]:
    """Join pieces with the same key into parts, in order. A numeric key must equal the part's index; if not, the part's
    kind shows it."""
    parts: dict[str | int, Part] = {}
    for key, piece in pieces:
        known = parts.get(key, Part(piece.kind, ""))
        parts[key] = Part(piece.kind, known.text + piece.text, known.name or piece.name, known.id or piece.id)
    return tuple(
        part if key == idx or isinstance(key, str) else replace(part, kind=f"{part.kind} at {key}")
        for idx, (key, part) in enumerate(parts.items())
    )


def of_chat(answer: Any) -> Reply:
    """The reply in the first choice of a ChatCompletion."""
    choice = answer.choices[0]
    parts = together(_chat_pieces([choice.message]))
    return Reply(parts, choice.finish_reason, answer.id, raw=answer, **_counts(answer.usage))


def of_chunks(chunks: Sequence[Any]) -> Reply:
    """The reply in the first choice of a streamed ChatCompletion."""
    choices = _first_choices(chunks)
    parts = together(_chat_pieces([choice.delta for choice in choices]))
    return Reply(parts, _last_end(choices), raw=chunks, **_counts(chunks[-1].usage))


def _chat_pieces(messages: Iterable[Any]) -> Iterator[tuple[str, Part]]:
    """The pieces of whole messages, or of deltas, whose calls are numbered."""
    for message in messages:
        extra = message.model_extra or {}
        thinking = extra.get("reasoning_content") or extra.get("reasoning") or ""  # servers use either name
        for kind, text in (("thinking", thinking), ("text", message.content)):
            if text:
                yield kind, Part(kind, text)
        for idx, call in enumerate(message.tool_calls or ()):
            function, index = call.function, getattr(call, "index", idx)
            yield f"call {index}", Part("call", function.arguments or "", function.name or "", call.id or "")


def of_completion(answer: Any) -> Reply:
    """The reply in the first choice of a plain Completion."""
    return replace(of_completion_chunks([answer]), id=answer.id, raw=answer)


def of_completion_chunks(chunks: Sequence[Any]) -> Reply:
    """The reply in the first choice of a streamed Completion."""
    choices = _first_choices(chunks)
    part = Part("text", "".join(choice.text for choice in choices))
    return Reply((part,), _last_end(choices), raw=chunks, **_counts(chunks[-1].usage))


def _first_choices(chunks: Iterable[Any]) -> list[Any]:
    return [choice for chunk in chunks for choice in chunk.choices if choice.index == 0]


def _last_end(choices: Iterable[Any]) -> str | None:
    ends = [choice.finish_reason for choice in choices if choice.finish_reason]
    return ends[-1] if ends else None


def of_response(response: Any) -> Reply:
    """The reply in a Response; if it is incomplete, `ended` is the reason."""
    is_cut = response.status == "incomplete"
    ended = str(response.incomplete_details.reason) if is_cut else response.status
    return Reply(tuple(map(_of_item, response.output)), ended, response.id, raw=response, **_counts(response.usage))


def of_response_events(events: Sequence[Any]) -> Reply:
    """The reply in the deltas of a streamed Response; `ended` is from the last event."""
    last = of_response(events[-1].response)
    kind = events[-1].type.removeprefix("response.")
    ended = last.ended if kind == "incomplete" else kind
    return replace(last, parts=together(_response_pieces(events)), ended=ended, id="", raw=events)


def _of_item(item: Any) -> Part:
    if item.type == "function_call":
        return Part("call", item.arguments, item.name, item.call_id)
    return Part(KINDS.get(item.type, item.type), "".join(part.text for part in item.content or ()))


def _response_pieces(events: Iterable[Any]) -> Iterator[tuple[int, Part]]:
    for event in events:
        if event.type == "response.output_item.added":
            yield event.output_index, replace(_of_item(event.item), text="")
        elif event.type in RESPONSE_DELTAS:
            yield event.output_index, Part(RESPONSE_DELTAS[event.type], event.delta)


def of_message(message: Any) -> Reply:
    """The reply in a Message of Anthropic's."""
    counts = {"num_prompt": num_input_tokens(message.usage), "num_sampled": message.usage.output_tokens}
    return Reply(tuple(map(_of_block, message.content)), message.stop_reason, message.id, raw=message, **counts)


def of_message_events(events: Sequence[Any]) -> Reply:
    """The reply in the deltas of a streamed Message."""
    parts = together(_message_pieces(events))
    end = next(event for event in events if event.type == "message_delta")
    counts = {"num_prompt": num_input_tokens(events[0].message.usage), "num_sampled": end.usage.output_tokens}
    read = [replace(part, text=json.dumps(json.loads(part.text))) if part.kind == "call" else part for part in parts]
    return Reply(tuple(read), end.delta.stop_reason, raw=events, **counts)


def _of_block(block: Any) -> Part:
    if block.type == "tool_use":
        return Part("call", json.dumps(block.input), block.name, block.id)
    return Part(KINDS.get(block.type, block.type), getattr(block, block.type))


def _message_pieces(events: Iterable[Any]) -> Iterator[tuple[int, Part]]:
    for event in events:
        if event.type == "content_block_start":
            yield event.index, replace(_of_block(event.content_block), text="")
        elif event.type == "content_block_delta" and event.delta.type in MESSAGE_DELTAS:
            name = MESSAGE_DELTAS[event.delta.type]
            yield event.index, Part("call" if name == "partial_json" else name, getattr(event.delta, name))


def num_input_tokens(usage: Any) -> int:
    """Number of prompt tokens of a Message; the protocol counts cached ones separately."""
    cached = (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
    return int(usage.input_tokens + cached)


def _counts(usage: Any) -> dict[str, Any]:
    """The token counts of OpenAI's protocols, which use two pairs of names."""
    counts = {} if usage is None else usage.model_dump()
    names = {"num_prompt": ("prompt_tokens", "input_tokens"), "num_sampled": ("completion_tokens", "output_tokens")}
    return {ours: counts[name] for ours, theirs in names.items() for name in theirs if name in counts}
