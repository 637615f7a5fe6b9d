"""Laws of tools, JSON and thinking that several protocols have in common, each written once."""

from __future__ import annotations

from ludus.checks.conformance import expect
from ludus.checks.conformance.asks import (
    ASK,
    BROKEN_CALL,
    FUNCTIONS,
    NAMES,
    POINT,
    ROOM,
    THOUGHT,
    TIME_ARGUMENTS,
    TIME_CALL,
    TWO_CALLS,
    WEATHER_ARGUMENTS,
    check_city,
    check_point,
)
from ludus.checks.conformance.case import RECORD, SCRIPT, law
from ludus.checks.conformance.cases.laws import helped
from ludus.checks.conformance.expect import TEXT, one_of
from ludus.checks.conformance.probe import Probe
from ludus.checks.conformance.replies import Reply
from ludus.checks.conformance.words import CHAT, MESSAGES, RESPONSES


async def check_extends(probe: Probe) -> None:
    """The second turn goes on with the tokens of the first."""
    first, second = probe.local.turns
    expect.parts(second, prefix=first.id, fork=None)
    before = (*probe.local.calls[0].call.prompt_ids, *first.sampled.token_ids)
    expect.equal("beginning of the second prompt", probe.local.calls[1].call.prompt_ids[: len(before)], before)


async def forced(probe: Probe, **fields: object) -> Reply:
    """The reply to a question with tools, with room for a model that writes many blanks."""
    return await probe.ask(**{**probe.words.calling, probe.words.limit: ROOM, **fields})


# ---- tools


@law("tools/one_call", "chat responses=call messages=call", ours=SCRIPT)
async def one_call(probe: Probe) -> None:
    """A call has an id, its name and its arguments, nothing is beside it, and the end is a call's; streamed too."""
    reply = await probe.both(TIME_CALL, **probe.words.calling)
    expect.parts(reply, kinds=["call"], names=["get_time"], arguments=[TIME_ARGUMENTS], ended=probe.words.called)
    expect.equal("id of the call", reply.calls[0].id, TEXT)
    if probe.words is CHAT:
        expect.parts(reply.raw.choices[0].message, content=None)
    if probe.words is RESPONSES:
        expect.parts(reply.raw.output[0], id=TEXT, status="completed")


@law("tools/two_calls", "chat responses=items messages=three_blocks", ours=SCRIPT)
async def two_calls(probe: Probe) -> None:
    """Text and two calls are there in the order in which they were sampled, with ids of their own; streamed too."""
    reply = await probe.both(f"I look it up.\n{TWO_CALLS}", **probe.words.calling)
    expect.parts(reply, kinds=["text", "call", "call"], names=NAMES, ended=probe.words.called)
    expect.equal("number of different ids", len({call.id for call in reply.calls}), 2)


@law("tools/streamed_as_sampled", "chat responses=streamed_arguments messages=streamed_call", ours=SCRIPT)
async def streamed_as_sampled(probe: Probe) -> None:
    """Streamed arguments are the text that was sampled: blanks, escapes and order stay."""
    events = await probe.events(TWO_CALLS, **probe.words.calling)
    pieces = "".join(map(probe.words.arguments_in, events))
    expect.equal("the pieces together", pieces, WEATHER_ARGUMENTS + TIME_ARGUMENTS)
    if probe.words is MESSAGES:
        inputs = [event.content_block.input for event in events if event.type == "content_block_start"]
        expect.equal("inputs at the start", inputs, [{}, {}])
    if probe.words is RESPONSES:
        done = [event.arguments for event in events if event.type == "response.function_call_arguments.done"]
        expect.equal("arguments of the done events", done, [WEATHER_ARGUMENTS, TIME_ARGUMENTS])
        replies = (probe.words.streamed(events), probe.words.whole(events[-1].response))
        expect.equal("arguments of the items", [reply.arguments for reply in replies], [done, done])


@law("tools/helper", "chat messages=helper_calls", ours=SCRIPT)
async def helper(probe: Probe) -> None:
    """The SDK's stream helper puts together the calls."""
    whole = await probe.ask(TWO_CALLS, **probe.words.calling)
    reply = await helped(probe, TWO_CALLS, **probe.words.calling)
    expect.parts(reply, names=NAMES, calls=whole.calls, ended=probe.words.called)


@law("tools/extends", "chat responses messages", ours=RECORD)
async def extends(probe: Probe) -> None:
    """After a call and its result the second turn extends the first, token by token."""
    await call_and_go_on(probe, f"I look it up.\n{TWO_CALLS}")
    await check_extends(probe)


async def call_and_go_on(probe: Probe, answer: str) -> None:
    """The model answers with calls, and goes on with their results."""
    calling = probe.words.calling
    reply = await probe.ask(answer, **calling)
    await probe.ask("It is noon.", **{**calling, **probe.words.goes_on(reply, calling[probe.words.messages], None)})


@law("tools/undecoded", "chat responses messages", ours=SCRIPT)
async def undecoded(probe: Probe) -> None:
    """A call that cannot be decoded stays in the text, and the end is that of a text."""
    replies = [await probe.ask(BROKEN_CALL, **probe.words.calling)]
    if probe.words is RESPONSES:  # its stream ends with the whole
        events = await probe.events(BROKEN_CALL, **probe.words.calling)
        replies.append(probe.words.whole(events[-1].response))
    for reply in replies:
        expect.parts(reply, calls=[], text=BROKEN_CALL, ended=probe.words.ended)


@law("tools/choice_none", "chat responses messages")
async def choice_none(probe: Probe) -> None:
    """tool_choice none: no calls, whatever the model samples."""
    reply = await probe.ask(TIME_CALL, **probe.words.calling, tool_choice=probe.words.no_calls)
    expect.parts(reply, calls=[], ended=one_of(probe.words.ended, probe.words.cut))


@law("forced tools/required", "chat responses messages=any_tool")
async def required(probe: Probe) -> None:
    """A call can be required: at least one, with arguments that fit the schema."""
    reply = await forced(probe, tool_choice=probe.words.must_call)
    expect.that("calls", reply.calls and {*reply.names} <= {*NAMES}, "at least one, of the tools offered", reply)
    for call in reply.calls:
        check_city(call.text)
    if probe.words is not CHAT:
        expect.equal("how it ended", reply.ended, probe.words.called)


@law("forced tools/named", "chat responses messages")
async def named(probe: Probe) -> None:
    """A named tool is the one that is called, once, with arguments that fit its schema."""
    reply = await forced(probe, tool_choice=probe.words.choose("get_time"))
    expect.parts(reply, names=["get_time"])
    check_city(reply.arguments[0])


@law("forced tools/one_at_most", "chat=ends_after_first responses messages", ours=SCRIPT)
async def one_at_most(probe: Probe) -> None:
    """Where calls are not to be parallel an answer ends after its first call."""
    reply = await probe.ask(TWO_CALLS, **{**probe.words.calling, **probe.words.one_call})
    expect.parts(reply, names=["get_weather"], ended=probe.words.called)


@law("forced tools/strict", "chat responses")
async def strict(probe: Probe) -> None:
    """A strict tool is taken, and forced its arguments fit the schema."""
    tools = [probe.words.offer({**FUNCTIONS[0], "strict": True})]
    check_city((await forced(probe, tools=tools, tool_choice="required")).arguments[0])


# ---- JSON, thinking


@law("structured output/schema", "chat responses")
async def schema(probe: Probe) -> None:
    """json_schema: the text is JSON that fits the schema, at once and streamed."""
    for ask in (probe.ask, probe.stream):
        check_point((await ask(**probe.words.formed(POINT))).text)


@law("structured output/json_object", "chat responses")
async def json_object(probe: Probe) -> None:
    """json_object: the text is a JSON object; where a limit cuts it, the beginning of one."""
    reply = await probe.ask(**probe.words.formed(None))
    if reply.ended == probe.words.cut:  # what stands in it is the model's affair
        expect.equal("the text, which was cut", reply.text.lstrip(), expect.beginning("{"))
    else:
        expect.json_object("the text", reply.text)


@law("structured output/parsed", "chat responses")
async def parsed(probe: Probe) -> None:
    """The SDK's parse returns the parsed object."""
    import pydantic

    class Colour(pydantic.BaseModel):
        red: int
        name: str

    form = {"response_format" if probe.words is CHAT else "text_format": Colour, probe.words.limit: 200}
    answer = await probe.sdk.parse(**probe.fields(**form))
    value = answer.choices[0].message.parsed if probe.words is CHAT else answer.output_parsed
    expect.that("the parsed object", isinstance(value, Colour), "a Colour", value)


@law("reasoning/thinking", "chat responses messages", ours=SCRIPT)
async def thinking(probe: Probe) -> None:
    """Thinking stands apart from the text, before it."""
    reply = await probe.both(THOUGHT)
    expect.parts(reply, kinds=["thinking", "text"], reasoning="Paris is in France.", text="It rains.")
    if probe.words is MESSAGES:
        expect.parts(reply.raw.content[0], signature=TEXT)


@law("reasoning/thinking_back", "chat=thinking_sent_back responses messages", ours=RECORD)
async def thinking_back(probe: Probe) -> None:
    """Thinking that is sent back leaves the tokens as they were sampled."""
    await probe.ask(**probe.words.goes_on(await probe.ask(THOUGHT), ASK, "And in Rome?"))
    await check_extends(probe)
