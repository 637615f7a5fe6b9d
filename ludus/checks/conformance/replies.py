"""One answer of any protocol, whole or put together from its stream, in the same words: so that two can be compared.

Knows: the shapes of the SDKs' objects.  Knows not: what they should hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Called:
    """A call of a tool."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Reply:
    """What one answer says."""

    text: str
    ended: str | None
    calls: tuple[Called, ...] = ()
    reasoning: str = ""


def of_choice(choice: Any) -> Reply:
    """The reply in a choice of a ChatCompletion."""
    message = choice.message
    calls = tuple(Called(call.id, call.function.name, call.function.arguments) for call in message.tool_calls or ())
    return Reply(message.content or "", choice.finish_reason, calls, reasoning_of(message))


def of_chunks(chunks: Iterable[Any], index: int = 0) -> Reply:
    """The reply that the chunks of a streamed ChatCompletion add up to, for the choice of that index."""
    text, reasoning, ended = [], [], None
    calls: dict[int, Called] = {}
    for choice in (choice for chunk in chunks for choice in chunk.choices if choice.index == index):
        text.append(choice.delta.content or "")
        reasoning.append(reasoning_of(choice.delta))
        ended = choice.finish_reason or ended
        for part in choice.delta.tool_calls or ():
            known = calls.get(part.index, Called("", "", ""))
            calls[part.index] = Called(
                known.id or part.id or "",
                known.name or part.function.name or "",
                known.arguments + (part.function.arguments or ""),
            )
    return Reply("".join(text), ended, tuple(calls[at] for at in sorted(calls)), "".join(reasoning))


def reasoning_of(message: Any) -> str:
    """Thinking beside a message or a delta; servers call it by two names."""
    extra = message.model_extra or {}
    return str(extra.get("reasoning_content") or extra.get("reasoning") or "")


def of_response(response: Any) -> Reply:
    """The reply in a Response."""
    calls = [item for item in response.output if item.type == "function_call"]
    thoughts = [part.text for item in response.output if item.type == "reasoning" for part in item.content or ()]
    return Reply(
        response.output_text,
        response.status,
        tuple(Called(call.call_id, call.name, call.arguments) for call in calls),
        "".join(thoughts),
    )


def of_response_events(events: Sequence[Any]) -> Reply:
    """The reply that the deltas of a streamed Response add up to; how it ended, from the last event."""
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    thoughts = "".join(event.delta for event in events if event.type == "response.reasoning_text.delta")
    arguments: dict[int, str] = {}
    items: dict[int, Any] = {}
    for event in events:
        if event.type == "response.output_item.added" and event.item.type == "function_call":
            items[event.output_index] = event.item
        if event.type == "response.function_call_arguments.delta":
            arguments[event.output_index] = arguments.get(event.output_index, "") + event.delta
    calls = tuple(Called(item.call_id, item.name, arguments.get(at, "")) for at, item in sorted(items.items()))
    return Reply(text, events[-1].response.status, calls, thoughts)


def of_message(message: Any) -> Reply:
    """The reply in a Message of Anthropic's."""
    blocks = message.content
    return Reply(
        "".join(block.text for block in blocks if block.type == "text"),
        message.stop_reason,
        tuple(Called(block.id, block.name, repr(block.input)) for block in blocks if block.type == "tool_use"),
        "".join(block.thinking for block in blocks if block.type == "thinking"),
    )
