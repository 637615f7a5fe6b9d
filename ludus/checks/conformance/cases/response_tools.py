"""OpenAI Responses with tools: calls and outputs as items, calls that are forced, JSON, thinking."""

from __future__ import annotations

from typing import Any

from ludus.checks.conformance import expect
from ludus.checks.conformance.case import SCRIPT, case
from ludus.checks.conformance.cases.asks import (
    QUESTION,
    RESPONSE_TOOLS,
    THOUGHT,
    TIME_CALL,
    WEATHER_ARGUMENTS,
    WEATHER_CALL,
    check_json_object,
)
from ludus.checks.conformance.probe import ASK, Probe
from ludus.checks.conformance.replies import of_response, of_response_events

TOOLS: dict[str, Any] = {"input": QUESTION, "tools": RESPONSE_TOOLS}
ENDED = ("completed", "incomplete")


# ---- tools


@case("responses", "tools", ours=SCRIPT)
async def call(probe: Probe) -> None:
    """A call is an item of its own: call_id, name, arguments as sampled."""
    probe.script(WEATHER_CALL)
    (item,) = (await probe.respond(**TOOLS)).output
    expect.equal("type", item.type, "function_call")
    expect.text("id", item.id)
    expect.text("call_id", item.call_id)
    expect.equal("name", item.name, "get_weather")
    expect.equal("arguments", item.arguments, WEATHER_ARGUMENTS)
    expect.equal("status", item.status, "completed")


@case("responses", "tools", ours=SCRIPT)
async def items(probe: Probe) -> None:
    """Text and two calls are three items, in the order in which they were said."""
    said = f"I look it up.\n{WEATHER_CALL}\n{TIME_CALL}"
    probe.script(said, said)
    response = await probe.respond(**TOOLS)
    expect.equal("types", [item.type for item in response.output], ["message", "function_call", "function_call"])
    events = await probe.response_events(**TOOLS)
    opened = [(e.output_index, e.item.type) for e in events if e.type == "response.output_item.added"]
    expect.equal("items opened", opened, [(0, "message"), (1, "function_call"), (2, "function_call")])


@case("responses", "tools", ours=SCRIPT)
async def streamed_arguments(probe: Probe) -> None:
    """Streamed arguments add up to those of the done event and of the item."""
    probe.script(f"{WEATHER_CALL}\n{TIME_CALL}")
    events = await probe.response_events(**TOOLS)
    added = [call.arguments for call in of_response_events(events).calls]
    done = [event.arguments for event in events if event.type == "response.function_call_arguments.done"]
    whole = [call.arguments for call in of_response(events[-1].response).calls]
    expect.equal("arguments of the done events", done, added)
    expect.equal("arguments of the items", whole, added)
    expect.equal("the first call's", added[0], WEATHER_ARGUMENTS)


@case("responses", "tools")
async def output(probe: Probe) -> None:
    """A call and its output are taken back, and the answer goes on."""
    called = {"type": "function_call", "call_id": "call_a", "name": "get_time", "arguments": '{"city": "Paris"}'}
    result = {"type": "function_call_output", "call_id": "call_a", "output": "noon"}
    response = await probe.respond(input=[*ASK, called, result], tools=RESPONSE_TOOLS)
    expect.one_of("status", response.status, ENDED)


# ---- structured output


@case("responses", "structured output")
async def json_object(probe: Probe) -> None:
    """json_object: the text is a JSON object."""
    response = await probe.respond(text={"format": {"type": "json_object"}}, max_output_tokens=200)
    check_json_object(response.output_text, is_cut=response.status == "incomplete")


@case("responses", "structured output")
async def parsed(probe: Probe) -> None:
    """The SDK's parse returns the parsed object."""
    import pydantic

    class Colour(pydantic.BaseModel):
        red: int
        name: str

    fields = probe.response_fields(max_output_tokens=200)
    response = await probe.openai.responses.parse(**fields, text_format=Colour)
    expect.that("the parsed object", isinstance(response.output_parsed, Colour), "a Colour", response.output_parsed)


# ---- reasoning


@case("responses", "reasoning", ours=SCRIPT)
async def thinking(probe: Probe) -> None:
    """Thinking is an item of its own before the message."""
    probe.script(THOUGHT)
    response = await probe.respond()
    expect.equal("types", [item.type for item in response.output], ["reasoning", "message"])
    reply = of_response(response)
    expect.equal("thinking", reply.reasoning.strip(), "Paris is in France.")
    expect.equal("text", reply.text, "It rains.")


@case("responses", "reasoning", ours=SCRIPT)
async def thinking_streamed(probe: Probe) -> None:
    """Streamed thinking adds up, and is closed before the message opens."""
    probe.script(THOUGHT, THOUGHT)
    whole = of_response(await probe.respond())
    events = await probe.response_events()
    expect.equal("the streamed reply", of_response_events(events), whole)
    kinds = [event.type for event in events]
    closed = kinds.index("response.output_item.done")
    opened = [idx for idx, kind in enumerate(kinds) if kind == "response.output_item.added"][1]
    expect.that("the thinking", closed < opened, "closed before the message opens", (closed, opened))


@case("responses", "reasoning")
async def effort(probe: Probe) -> None:
    """reasoning.effort is taken."""
    response = await probe.respond(reasoning={"effort": "low"})
    expect.one_of("status", response.status, ENDED)
