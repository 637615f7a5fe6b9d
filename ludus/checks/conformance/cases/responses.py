"""OpenAI Responses: items, the order of events, going on with an earlier response, limits, errors."""

from __future__ import annotations

from typing import Any

from ludus.checks.conformance import expect
from ludus.checks.conformance.case import EXTENSION, RECORD, case
from ludus.checks.conformance.cases.asks import (
    QUESTION,
    RESPONSE_TOOLS,
    TIME_CALL,
)
from ludus.checks.conformance.probe import ASK, Probe
from ludus.checks.conformance.replies import of_response, of_response_events

PATH = "/responses"
TOOLS: dict[str, Any] = {"input": QUESTION, "tools": RESPONSE_TOOLS}
ENDED = ("completed", "incomplete")


# ---- text


@case("responses", "text")
async def parts(probe: Probe) -> None:
    """A response has every part that the protocol names."""
    response = await probe.respond()
    expect.equal("object", response.object, "response")
    expect.text("id", response.id)
    expect.one_of("status", response.status, ENDED)
    expect.equal("error", response.error, None)
    expect.text("model", response.model)
    expect.text("output_text", response.output_text)


@case("responses", "text")
async def message_item(probe: Probe) -> None:
    """The text is in one message item of the assistant, in a part output_text."""
    items = [item for item in (await probe.respond()).output if item.type == "message"]
    expect.equal("number of messages", len(items), 1)
    expect.equal("role", items[0].role, "assistant")
    expect.text("id of the item", items[0].id)
    expect.one_of("status of the item", items[0].status, ENDED)
    expect.equal("types of the parts", [part.type for part in items[0].content], ["output_text"])
    expect.equal("annotations", list(items[0].content[0].annotations), [])


@case("responses", "text")
async def roles(probe: Probe) -> None:
    """A developer's and a system's message are taken."""
    for role in ("developer", "system"):
        response = await probe.respond(input=[{"role": role, "content": "Be brief."}, *ASK])
        expect.text("output_text", response.output_text)


@case("responses", "text")
async def repeated(probe: Probe) -> None:
    """A response states how it was asked for: temperature, top_p, tools, metadata."""
    asked = {"temperature": 0.5, "top_p": 0.9, "metadata": {"a": "b"}, "max_output_tokens": 30}
    response = await probe.respond(**asked)
    expect.equal("what it repeats", {name: getattr(response, name) for name in asked}, asked)
    expect.equal("tools", response.tools, [])
    expect.equal("parallel_tool_calls", response.parallel_tool_calls, True)


# ---- streaming


@case("responses", "streaming")
async def numbered(probe: Probe) -> None:
    """Events are numbered from 0 without a gap."""
    expect.rising("sequence_number", [event.sequence_number for event in await probe.response_events()])


@case("responses", "streaming")
async def frame(probe: Probe) -> None:
    """The stream begins with created and in_progress, and ends with the whole response."""
    kinds = [event.type for event in await probe.response_events()]
    expect.equal("the first events", kinds[:2], ["response.created", "response.in_progress"])
    expect.one_of("the last event", kinds[-1], ("response.completed", "response.incomplete"))


@case("responses", "streaming")
async def order(probe: Probe) -> None:
    """A text item opens, its part opens, deltas come, and all are closed in turn."""
    kinds = [event.type for event in await probe.response_events()]
    told = [kind for kind in kinds[2:-1] if "reasoning" not in kind]
    without_repeats = [kind for idx, kind in enumerate(told) if idx == 0 or kind != told[idx - 1]]
    expected = [
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
    ]
    expect.equal("order of the events", without_repeats[-len(expected) :], expected)


@case("responses", "streaming")
async def last_response(probe: Probe) -> None:
    """The response in the last event holds what its deltas said."""
    events = await probe.response_events()
    expect.equal("the last response", of_response(events[-1].response), of_response_events(events))
    done = [event.text for event in events if event.type == "response.output_text.done"]
    expect.equal("text of the done event", "".join(done), of_response_events(events).text)


@case("responses", "streaming")
async def places(probe: Probe) -> None:
    """Every event names the item it belongs to, by id and index."""
    events = await probe.response_events()
    opened = {event.output_index: event.item.id for event in events if event.type == "response.output_item.added"}
    for event in events:
        if event.type in ("response.output_text.delta", "response.output_text.done", "response.content_part.added"):
            expect.equal(f"item of {event.type}", event.item_id, opened.get(event.output_index))
            expect.equal(f"content_index of {event.type}", event.content_index, 0)
    expect.rising("output_index of the items", sorted(opened))


@case("responses", "streaming")
async def helper(probe: Probe) -> None:
    """The SDK's stream helper puts together the text as it comes."""
    # Its final response is there for completed ones alone; a limit may cut this one.
    async with probe.openai.responses.stream(**probe.response_fields()) as stream:
        snapshots = [event.snapshot async for event in stream if event.type == "response.output_text.delta"]
    expect.equal("the last snapshot", snapshots[-1:], [(await probe.respond()).output_text])


# ---- previous_response_id


@case("responses", "records")
async def goes_on(probe: Probe) -> None:
    """previous_response_id goes on with that response: the prompt holds both."""
    first = await probe.respond()
    second = await probe.respond(previous_response_id=first.id, input="More.")
    expect.equal("previous_response_id", second.previous_response_id, first.id)
    expect.that(
        "input_tokens",
        second.usage.input_tokens > first.usage.input_tokens,
        f"more than {first.usage.input_tokens}",
        second.usage.input_tokens,
    )


@case("responses", "records", ours=RECORD)
async def goes_on_exactly(probe: Probe) -> None:
    """Going on extends the tokens of the first turn, its thinking and calls too."""
    probe.script(f"<think>\nI ask.\n</think>\n\n{TIME_CALL}", "It is noon.")
    first = await probe.respond(**TOOLS)
    result = {"type": "function_call_output", "call_id": of_response(first).calls[0].id, "output": "noon"}
    await probe.respond(previous_response_id=first.id, input=[result], tools=RESPONSE_TOOLS)
    before, after = probe.local.turns
    expect.equal("prefix and fork of the second turn", (after.prefix, after.fork), (before.id, None))


@case("responses", "records", ours=RECORD)
async def branches(probe: Probe) -> None:
    """One response can be gone on with twice: two branches."""
    first = await probe.respond()
    for text in ("More.", "Fewer."):
        await probe.respond(previous_response_id=first.id, input=text)
    root, *rest = probe.local.turns
    expect.equal("prefixes", [turn.prefix for turn in rest], [root.id, root.id])


# ---- logprobs, limits, errors, headers


@case("responses", "logprobs", ours=RECORD)
async def logprobs(probe: Probe) -> None:
    """Asked for by include, they stand beside the text, one entry a token."""
    response = await probe.respond(include=["message.output_text.logprobs"], top_logprobs=2)
    entries = response.output[0].content[0].logprobs
    sampled = probe.local.turns[0].sampled
    expect.equal("logprobs", [entry.logprob for entry in entries], list(sampled.logprobs))
    expect.equal("number of likeliest tokens", {len(entry.top_logprobs) for entry in entries}, {2})


@case("responses", "count_tokens", ours=EXTENSION)
async def count(probe: Probe) -> None:
    """The count of a request's tokens is what the request then uses."""
    fields = {"model": probe.model, "input": QUESTION, "instructions": "Be brief.", "tools": RESPONSE_TOOLS}
    counted = await probe.openai.responses.input_tokens.count(**fields)
    used = (await probe.respond(**{name: value for name, value in fields.items() if name != "model"})).usage
    expect.equal("input_tokens", counted.input_tokens, used.input_tokens)
