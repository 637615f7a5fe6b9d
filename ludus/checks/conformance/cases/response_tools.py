"""OpenAI Responses with tools: calls and outputs as items, calls that are forced, JSON, thinking."""

from __future__ import annotations

from typing import Any

from ludus.checks.conformance import expect
from ludus.checks.conformance.case import RECORD, SCRIPT, case
from ludus.checks.conformance.cases.asks import (
    BROKEN_CALL,
    CITY,
    POINT,
    QUESTION,
    RESPONSE_TOOLS,
    TIME_CALL,
    WEATHER_ARGUMENTS,
    WEATHER_CALL,
)
from ludus.checks.conformance.cases.chat_forms import THOUGHT, check_json_object, check_point
from ludus.checks.conformance.cases.chat_tools import ROOM, check_city
from ludus.checks.conformance.probe import ASK, Probe
from ludus.checks.conformance.replies import of_response, of_response_events

TOOLS: dict[str, Any] = {"input": QUESTION, "tools": RESPONSE_TOOLS}
ENDED = ("completed", "incomplete")


# ---- tools


@case("responses", "tools", "a call is an item of its own: call_id, name, arguments as sampled", ours=SCRIPT)
async def call(probe: Probe) -> None:
    probe.script(WEATHER_CALL)
    (item,) = (await probe.respond(**TOOLS)).output
    expect.equal("type", item.type, "function_call")
    expect.text("id", item.id)
    expect.text("call_id", item.call_id)
    expect.equal("name", item.name, "get_weather")
    expect.equal("arguments", item.arguments, WEATHER_ARGUMENTS)
    expect.equal("status", item.status, "completed")


@case("responses", "tools", "text and two calls are three items, in the order in which they were said", ours=SCRIPT)
async def items(probe: Probe) -> None:
    said = f"I look it up.\n{WEATHER_CALL}\n{TIME_CALL}"
    probe.script(said, said)
    response = await probe.respond(**TOOLS)
    expect.equal("types", [item.type for item in response.output], ["message", "function_call", "function_call"])
    events = await probe.response_events(**TOOLS)
    opened = [(e.output_index, e.item.type) for e in events if e.type == "response.output_item.added"]
    expect.equal("items opened", opened, [(0, "message"), (1, "function_call"), (2, "function_call")])


@case("responses", "tools", "streamed arguments add up to those of the done event and of the item", ours=SCRIPT)
async def streamed_arguments(probe: Probe) -> None:
    probe.script(f"{WEATHER_CALL}\n{TIME_CALL}")
    events = await probe.response_events(**TOOLS)
    added = [call.arguments for call in of_response_events(events).calls]
    done = [event.arguments for event in events if event.type == "response.function_call_arguments.done"]
    whole = [call.arguments for call in of_response(events[-1].response).calls]
    expect.equal("arguments of the done events", done, added)
    expect.equal("arguments of the items", whole, added)
    expect.equal("the first call's", added[0], WEATHER_ARGUMENTS)


@case("responses", "tools", "a call and its output are taken back, and the answer goes on")
async def output(probe: Probe) -> None:
    called = {"type": "function_call", "call_id": "call_a", "name": "get_time", "arguments": '{"city": "Paris"}'}
    result = {"type": "function_call_output", "call_id": "call_a", "output": "noon"}
    response = await probe.respond(input=[*ASK, called, result], tools=RESPONSE_TOOLS)
    expect.one_of("status", response.status, ENDED)


@case("responses", "tools", "after a call and its output the second turn extends the first", ours=RECORD)
async def extends(probe: Probe) -> None:
    probe.script(f"{WEATHER_CALL}\n{TIME_CALL}", "It is noon.")
    first = await probe.respond(**TOOLS)
    history: list[Any] = [{"role": "user", "content": QUESTION}]
    history += [item.model_dump(exclude_none=True) for item in first.output]
    history += [{"type": "function_call_output", "call_id": item.call_id, "output": "noon"} for item in first.output]
    await probe.respond(input=history, tools=RESPONSE_TOOLS)
    before, after = probe.own.turns
    expect.equal("prefix and fork of the second turn", (after.prefix, after.fork), (before.id, None))


@case("responses", "tools", "a call that cannot be decoded stays text, and no call is in the output", ours=SCRIPT)
async def undecoded(probe: Probe) -> None:
    probe.script(BROKEN_CALL, BROKEN_CALL)
    reply = of_response(await probe.respond(**TOOLS))
    expect.equal("calls and text", (reply.calls, reply.text), ((), BROKEN_CALL))
    streamed = of_response((await probe.response_events(**TOOLS))[-1].response)
    expect.equal("calls and text streamed", (streamed.calls, streamed.text), ((), BROKEN_CALL))


@case("responses", "tools", "tool_choice none: no calls, whatever the model says")
async def choice_none(probe: Probe) -> None:
    probe.script(TIME_CALL)
    reply = of_response(await probe.respond(**TOOLS, tool_choice="none"))
    expect.equal("calls", reply.calls, ())


@case("responses", "forced tools", "tool_choice required: at least one call, with arguments that fit the schema")
async def required(probe: Probe) -> None:
    reply = of_response(await probe.respond(**TOOLS, tool_choice="required", max_output_tokens=ROOM))
    expect.that("calls", reply.calls, "at least one", reply)
    check_city(reply.calls[0].arguments)


@case("responses", "forced tools", "a named tool is the one that is called")
async def named(probe: Probe) -> None:
    choice = {"type": "function", "name": "get_time"}
    reply = of_response(await probe.respond(**TOOLS, tool_choice=choice, max_output_tokens=ROOM))
    expect.equal("names", [call.name for call in reply.calls], ["get_time"])
    check_city(reply.calls[0].arguments)


@case("responses", "forced tools", "parallel_tool_calls=false: one call at most", ours=SCRIPT)
async def one_at_most(probe: Probe) -> None:
    probe.script(f"{WEATHER_CALL}\n{TIME_CALL}")
    reply = of_response(await probe.respond(**TOOLS, parallel_tool_calls=False))
    expect.equal("names", [call.name for call in reply.calls], ["get_weather"])


@case("responses", "forced tools", "a strict tool's arguments fit its schema")
async def strict(probe: Probe) -> None:
    tool = {"type": "function", "name": "get_weather", "parameters": CITY, "strict": True}
    reply = of_response(
        await probe.respond(input=QUESTION, tools=[tool], tool_choice="required", max_output_tokens=ROOM)
    )
    check_city(reply.calls[0].arguments)


# ---- structured output


def text_format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"format": {"type": "json_schema", "name": "point", "schema": schema, "strict": True}}


@case("responses", "structured output", "json_schema: the text is JSON that fits the schema, at once and streamed")
async def schema(probe: Probe) -> None:
    fields = {"text": text_format(POINT), "max_output_tokens": 200}
    check_point((await probe.respond(**fields)).output_text)
    check_point(of_response_events(await probe.response_events(**fields)).text)


@case("responses", "structured output", "json_object: the text is a JSON object")
async def json_object(probe: Probe) -> None:
    response = await probe.respond(text={"format": {"type": "json_object"}}, max_output_tokens=200)
    check_json_object(response.output_text, is_cut=response.status == "incomplete")


@case("responses", "structured output", "the SDK's parse hands out the parsed object")
async def parsed(probe: Probe) -> None:
    import pydantic

    class Colour(pydantic.BaseModel):
        red: int
        name: str

    fields = probe.response_fields(max_output_tokens=200)
    response = await probe.openai.responses.parse(**fields, text_format=Colour)
    expect.that("the parsed object", isinstance(response.output_parsed, Colour), "a Colour", response.output_parsed)


# ---- reasoning


@case("responses", "reasoning", "thinking is an item of its own before the message", ours=SCRIPT)
async def thinking(probe: Probe) -> None:
    probe.script(THOUGHT)
    response = await probe.respond()
    expect.equal("types", [item.type for item in response.output], ["reasoning", "message"])
    reply = of_response(response)
    expect.equal("thinking", reply.reasoning.strip(), "Paris is in France.")
    expect.equal("text", reply.text, "It rains.")


@case("responses", "reasoning", "streamed thinking adds up, and is closed before the message opens", ours=SCRIPT)
async def thinking_streamed(probe: Probe) -> None:
    probe.script(THOUGHT, THOUGHT)
    whole = of_response(await probe.respond())
    events = await probe.response_events()
    expect.equal("the streamed reply", of_response_events(events), whole)
    kinds = [event.type for event in events]
    closed = kinds.index("response.output_item.done")
    opened = [idx for idx, kind in enumerate(kinds) if kind == "response.output_item.added"][1]
    expect.that("the thinking", closed < opened, "closed before the message opens", (closed, opened))


@case("responses", "reasoning", "thinking that is sent back leaves the tokens as they were sampled", ours=RECORD)
async def thinking_back(probe: Probe) -> None:
    probe.script(THOUGHT)
    items_ = [item.model_dump(exclude_none=True) for item in (await probe.respond()).output]
    await probe.respond(input=[*ASK, *items_, {"role": "user", "content": "And in Rome?"}])
    first, second = probe.own.turns
    expect.equal("prefix and fork of the second turn", (second.prefix, second.fork), (first.id, None))


@case("responses", "reasoning", "reasoning.effort is taken")
async def effort(probe: Probe) -> None:
    response = await probe.respond(reasoning={"effort": "low"})
    expect.one_of("status", response.status, ENDED)
