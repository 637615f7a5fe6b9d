"""One answer of any protocol, whole or put together from its stream, in the same words: so that two can be compared.

Knows: the shapes of the SDKs' objects.  Knows not: what they should hold.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
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
    id: str = field(default="", compare=False)
    num_prompt: int | None = field(default=None, compare=False)
    """Tokens of the prompt. None: not told."""
    num_sampled: int | None = field(default=None, compare=False)
    raw: Any = field(default=None, compare=False, repr=False)
    """The SDK's object, or the events that it gave."""

    @property
    def names(self) -> list[str]:
        """Of the tools that are called."""
        return [call.name for call in self.calls]


def of_choice(choice: Any) -> Reply:
    """The reply in a choice of a ChatCompletion."""
    message = choice.message
    calls = tuple(Called(call.id, call.function.name, call.function.arguments) for call in message.tool_calls or ())
    return Reply(message.content or "", choice.finish_reason, calls, reasoning_of(message))


def of_chunks(chunks: Sequence[Any]) -> Reply:
    """The reply that the chunks of a streamed ChatCompletion add up to, in its first choice."""
    text, reasoning, ended = [], [], None
    calls: dict[int, Called] = {}
    for choice in (choice for chunk in chunks for choice in chunk.choices if choice.index == 0):
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
    called = tuple(calls[at] for at in sorted(calls))
    return Reply("".join(text), ended, called, "".join(reasoning), raw=chunks, **_counts(chunks[-1].usage))


def reasoning_of(message: Any) -> str:
    """Thinking beside a message or a delta; servers call it by two names."""
    extra = message.model_extra or {}
    return str(extra.get("reasoning_content") or extra.get("reasoning") or "")


def of_chat(answer: Any) -> Reply:
    """The reply in the first choice of a ChatCompletion, with its id and counts."""
    reply = of_choice(answer.choices[0])
    told = {"id": answer.id, "raw": answer, **_counts(answer.usage)}
    return Reply(reply.text, reply.ended, reply.calls, reply.reasoning, **told)


def of_completion(answer: Any) -> Reply:
    """The reply in the first choice of a plain Completion."""
    choice = answer.choices[0]
    return Reply(choice.text, choice.finish_reason, id=answer.id, raw=answer, **_counts(answer.usage))


def of_completion_chunks(chunks: Sequence[Any]) -> Reply:
    """The reply that the chunks of a streamed Completion add up to."""
    choices = [choice for chunk in chunks for choice in chunk.choices]
    ends = [choice.finish_reason for choice in choices if choice.finish_reason]
    text = "".join(choice.text for choice in choices)
    return Reply(text, ends[-1] if ends else None, raw=chunks, **_counts(chunks[-1].usage))


def of_response(response: Any) -> Reply:
    """The reply in a Response; of an incomplete one the end is its reason."""
    calls = [item for item in response.output if item.type == "function_call"]
    thoughts = [part.text for item in response.output if item.type == "reasoning" for part in item.content or ()]
    return Reply(
        response.output_text,
        _end_of(response, response.status),
        tuple(Called(call.call_id, call.name, call.arguments) for call in calls),
        "".join(thoughts),
        id=response.id,
        raw=response,
        **_counts(response.usage),
    )


def of_response_events(events: Sequence[Any]) -> Reply:
    """The reply that the deltas of a streamed Response add up to; how it ended, from the last event."""
    text = _joined(events, "response.output_text.delta")
    thoughts = _joined(events, "response.reasoning_text.delta")
    arguments: dict[int, str] = {}
    items: dict[int, Any] = {}
    for event in events:
        if event.type == "response.output_item.added" and event.item.type == "function_call":
            items[event.output_index] = event.item
        if event.type == "response.function_call_arguments.delta":
            arguments[event.output_index] = arguments.get(event.output_index, "") + event.delta
    calls = tuple(Called(item.call_id, item.name, arguments.get(at, "")) for at, item in sorted(items.items()))
    last = events[-1]
    ended = _end_of(last.response, last.type.removeprefix("response."))
    return Reply(text, ended, calls, thoughts, raw=events, **_counts(last.response.usage))


def _end_of(response: Any, status: str) -> str:
    return str(response.incomplete_details.reason) if status == "incomplete" else status


def _joined(events: Iterable[Any], kind: str) -> str:
    return "".join(event.delta for event in events if event.type == kind)


def of_message(message: Any) -> Reply:
    """The reply in a Message of Anthropic's."""
    blocks = message.content
    return Reply(
        "".join(block.text for block in blocks if block.type == "text"),
        message.stop_reason,
        tuple(Called(block.id, block.name, json.dumps(block.input)) for block in blocks if block.type == "tool_use"),
        "".join(block.thinking for block in blocks if block.type == "thinking"),
        id=message.id,
        num_prompt=num_input_tokens(message.usage),
        num_sampled=message.usage.output_tokens,
        raw=message,
    )


def of_message_events(events: Sequence[Any]) -> Reply:
    """The reply that the deltas of a streamed Message add up to."""
    deltas = [event for event in events if event.type == "content_block_delta"]
    opened = {event.index: event.content_block for event in events if event.type == "content_block_start"}
    calls = []
    for at, block in sorted(opened.items()):
        if block.type == "tool_use":
            pieces = (event.delta.partial_json for event in deltas if event.index == at)
            calls.append(Called(block.id, block.name, json.dumps(json.loads("".join(pieces)))))
    end = next(event for event in events if event.type == "message_delta")
    return Reply(
        "".join(event.delta.text for event in deltas if event.delta.type == "text_delta"),
        end.delta.stop_reason,
        tuple(calls),
        "".join(event.delta.thinking for event in deltas if event.delta.type == "thinking_delta"),
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
