"""One answer of any protocol, whole or put together from its stream, in the same words: so that two can be compared.

Knows: the shapes of the SDKs' objects.  Knows not: what they should hold.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

KINDS = {"message": "text", "function_call": "call", "tool_use": "call", "reasoning": "thinking"}


@dataclass(frozen=True, slots=True)
class Called:
    """A call of a tool."""

    id: str = field(compare=False)
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Reply:
    """What one answer says."""

    text: str
    ended: str | None
    calls: tuple[Called, ...] = ()
    reasoning: str = ""
    kinds: tuple[str, ...] = ()
    """What it is made of, in order: `thinking`, `text`, `call`. Plain Completions are text alone."""
    id: str = field(default="", compare=False)
    num_prompt: int = field(default=0, compare=False)
    """Tokens of the prompt. 0: not told."""
    num_sampled: int = field(default=0, compare=False)
    raw: Any = field(default=None, compare=False, repr=False)
    """The SDK's object, or the events that it gave."""

    @property
    def names(self) -> list[str]:
        """Of the tools that are called."""
        return [call.name for call in self.calls]

    @property
    def arguments(self) -> list[str]:
        return [call.arguments for call in self.calls]


def of_chat(answer: Any) -> Reply:
    """The reply in the first choice of a ChatCompletion."""
    choice, message = answer.choices[0], answer.choices[0].message
    calls = tuple(Called(call.id, call.function.name, call.function.arguments) for call in message.tool_calls or ())
    kinds = _kinds([message], calls)
    reply = Reply(
        message.content or "", choice.finish_reason, calls, reasoning_of(message), kinds, answer.id, raw=answer
    )
    return replace(reply, **_counts(answer.usage))


def of_chunks(chunks: Sequence[Any]) -> Reply:
    """The reply that the chunks of a streamed ChatCompletion add up to, in its first choice."""
    choices = [choice for chunk in chunks for choice in chunk.choices if choice.index == 0]
    deltas = [choice.delta for choice in choices]
    calls: dict[int, Called] = {}
    for part in (part for delta in deltas for part in delta.tool_calls or ()):
        known = calls.get(part.index, Called("", "", ""))
        arguments = known.arguments + (part.function.arguments or "")
        calls[part.index] = Called(known.id or part.id or "", known.name or part.function.name or "", arguments)
    called = tuple(calls[at] for at in sorted(calls))
    text = "".join(delta.content or "" for delta in deltas)
    reply = Reply(
        text, _last_end(choices), called, "".join(map(reasoning_of, deltas)), _kinds(deltas, called), raw=chunks
    )
    return replace(reply, **_counts(chunks[-1].usage))


def _kinds(parts: Iterable[Any], calls: Sequence[Called]) -> tuple[str, ...]:
    """Thinking and text in the order in which they come first in `parts`, then the calls."""
    told = [(kind, text) for part in parts for kind, text in (("thinking", reasoning_of(part)), ("text", part.content))]
    return (*dict.fromkeys(kind for kind, text in told if text), *("call" for _ in calls))


def reasoning_of(message: Any) -> str:
    """Thinking beside a message or a delta; servers call it by two names."""
    extra = message.model_extra or {}
    return str(extra.get("reasoning_content") or extra.get("reasoning") or "")


def of_completion(answer: Any) -> Reply:
    """The reply in the first choice of a plain Completion."""
    return replace(of_completion_chunks([answer]), id=answer.id, raw=answer)


def of_completion_chunks(chunks: Sequence[Any]) -> Reply:
    """The reply that the chunks of a streamed Completion add up to, in its first choice."""
    choices = [choice for chunk in chunks for choice in chunk.choices if choice.index == 0]
    text = "".join(choice.text for choice in choices)
    return Reply(text, _last_end(choices), raw=chunks, **_counts(chunks[-1].usage))


def _last_end(choices: Iterable[Any]) -> str | None:
    ends = [choice.finish_reason for choice in choices if choice.finish_reason]
    return ends[-1] if ends else None


def of_response(response: Any) -> Reply:
    """The reply in a Response; of an incomplete one the end is its reason."""
    items = response.output
    return Reply(
        response.output_text,
        _end_of(response, response.status),
        tuple(Called(item.call_id, item.name, item.arguments) for item in items if item.type == "function_call"),
        "".join(part.text for item in items if item.type == "reasoning" for part in item.content or ()),
        tuple(KINDS.get(item.type, item.type) for item in items),
        id=response.id,
        raw=response,
        **_counts(response.usage),
    )


def of_response_events(events: Sequence[Any]) -> Reply:
    """The reply that the deltas of a streamed Response add up to; how it ended, from the last event."""
    items = {event.output_index: event.item for event in events if event.type == "response.output_item.added"}
    calls = [(at, item) for at, item in sorted(items.items()) if item.type == "function_call"]
    arguments = "response.function_call_arguments.delta"
    last = events[-1]
    return Reply(
        _joined(events, "response.output_text.delta"),
        _end_of(last.response, last.type.removeprefix("response.")),
        tuple(Called(item.call_id, item.name, _joined(events, arguments, at)) for at, item in calls),
        _joined(events, "response.reasoning_text.delta"),
        _in_order(items),
        raw=events,
        **_counts(last.response.usage),
    )


def _in_order(items: dict[int, Any]) -> tuple[str, ...]:
    """The kinds of the items by index; an index that is not the place of its item is told with it."""
    kinds = [(at, KINDS.get(item.type, item.type)) for at, item in sorted(items.items())]
    return tuple(kind if at == place else f"{kind} at {at}" for place, (at, kind) in enumerate(kinds))


def _end_of(response: Any, status: str) -> str:
    return str(response.incomplete_details.reason) if status == "incomplete" else status


def _joined(events: Iterable[Any], kind: str, item: int | None = None) -> str:
    """The deltas of a kind together. item: only those of this item's index."""
    return "".join(event.delta for event in events if event.type == kind and item in (None, event.output_index))


def of_message(message: Any) -> Reply:
    """The reply in a Message of Anthropic's."""
    blocks = message.content
    return Reply(
        "".join(block.text for block in blocks if block.type == "text"),
        message.stop_reason,
        tuple(Called(block.id, block.name, json.dumps(block.input)) for block in blocks if block.type == "tool_use"),
        "".join(block.thinking for block in blocks if block.type == "thinking"),
        tuple(KINDS.get(block.type, block.type) for block in blocks),
        id=message.id,
        num_prompt=num_input_tokens(message.usage),
        num_sampled=message.usage.output_tokens,
        raw=message,
    )


def of_message_events(events: Sequence[Any]) -> Reply:
    """The reply that the deltas of a streamed Message add up to."""
    deltas = [event for event in events if event.type == "content_block_delta"]
    blocks = {event.index: event.content_block for event in events if event.type == "content_block_start"}
    calls = []
    for at, block in sorted(blocks.items()):
        if block.type == "tool_use":
            pieces = (event.delta.partial_json for event in deltas if event.index == at)
            calls.append(Called(block.id, block.name, json.dumps(json.loads("".join(pieces)))))
    end = next(event for event in events if event.type == "message_delta")
    return Reply(
        "".join(event.delta.text for event in deltas if event.delta.type == "text_delta"),
        end.delta.stop_reason,
        tuple(calls),
        "".join(event.delta.thinking for event in deltas if event.delta.type == "thinking_delta"),
        _in_order(blocks),
        num_prompt=num_input_tokens(events[0].message.usage),
        num_sampled=end.usage.output_tokens,
        raw=events,
    )


def num_input_tokens(usage: Any) -> int:
    """All tokens of the prompt of a Message; the protocol counts those that were cached apart."""
    cached = (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
    return int(usage.input_tokens + cached)


def _counts(usage: Any) -> dict[str, Any]:
    """What OpenAI's protocols count, by their two pairs of names."""
    if usage is None:
        return {}
    told = usage.model_dump()
    prompt = told["prompt_tokens"] if "prompt_tokens" in told else told["input_tokens"]
    sampled = told["completion_tokens"] if "completion_tokens" in told else told["output_tokens"]
    return {"num_prompt": prompt, "num_sampled": sampled}
