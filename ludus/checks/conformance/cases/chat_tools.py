"""Chat Completions with tools: calls at once and as they come, results sent back, calls that are forced."""

from __future__ import annotations

from ludus.checks.conformance import expect
from ludus.checks.conformance.asks import (
    BROKEN_CALL,
    NAMES,
    ROOM,
    TIME_ARGUMENTS,
    TIME_CALL,
    TWO_CALLS,
    WEATHER_ARGUMENTS,
    WEATHER_CALL,
    call_text,
    check_city,
)
from ludus.checks.conformance.case import EXTENSION, RECORD, SCRIPT, case
from ludus.checks.conformance.cases.tool_laws import forced
from ludus.checks.conformance.expect import FULL, beginning, ending, over
from ludus.checks.conformance.probe import Probe
from ludus.checks.conformance.words import CHAT

TOOLS = CHAT.calling


@case("chat", "tools")
async def offered(probe: Probe) -> None:
    """Offered tools are taken: the answer is text, or calls of these tools with JSON arguments."""
    reply = await probe.ask(**TOOLS)
    expect.that("the answer", reply.text or reply.calls, "text or calls", reply)
    for call in reply.calls:
        expect.equal("name of a call", call.name, expect.one_of(*NAMES))
        expect.json_object("arguments of a call", call.text)


@case("chat", "tools")
async def shown(probe: Probe) -> None:
    """The tools are shown to the model: they make the prompt longer."""
    plain = (await probe.ask(messages=TOOLS["messages"])).num_prompt
    expect.parts(await probe.ask(**TOOLS), num_prompt=over(plain))


@case("chat", "tools", ours=SCRIPT)
async def arguments_as_sampled(probe: Probe) -> None:
    """Arguments are the text that was sampled: blanks, escapes and order stay."""
    expect.parts(await probe.ask(WEATHER_CALL, **TOOLS), arguments=[WEATHER_ARGUMENTS])


@case("chat", "tools", ours=SCRIPT)
async def two_calls_streamed(probe: Probe) -> None:
    """Two calls stream under the indices 0 and 1, each with its id and name once."""
    chunks = await probe.events(TWO_CALLS, **TOOLS)
    parts = [part for chunk in chunks for part in chunk.choices[0].delta.tool_calls or ()]
    for index, name in enumerate(NAMES):
        own = [part for part in parts if part.index == index]
        expect.equal(f"names under index {index}", [p.function.name for p in own if p.function.name], [name])
        expect.equal(f"parts with an id under index {index}", [part for part in own if part.id], own[:1])
    arguments = [WEATHER_ARGUMENTS, TIME_ARGUMENTS]
    expect.parts(probe.words.streamed(chunks), arguments=arguments, ended="tool_calls")


@case("chat", "tools", ours=SCRIPT)
async def streamed_calls(probe: Probe) -> None:
    """Streamed calls are those of the answer at once."""
    expect.parts(await probe.both(f"I look it up.\n{TWO_CALLS}", **TOOLS), names=NAMES)


@case("chat", "tools", ours=SCRIPT)
async def arguments_in_pieces(probe: Probe) -> None:
    """Arguments leave while they are sampled, not in one piece."""
    pieces = [chunk for chunk in await probe.events(WEATHER_CALL, **TOOLS) if probe.words.arguments_in(chunk)]
    expect.equal("number of pieces", len(pieces), over(3))


@case("chat", "tools", ours=SCRIPT)
async def text_before(probe: Probe) -> None:
    """Text before a call stays text."""
    expect.parts(await probe.both(f"I look it up.\n{TIME_CALL}", **TOOLS), text="I look it up.", names=["get_time"])


@case("chat", "tools", ours=SCRIPT)
async def mark_inside(probe: Probe) -> None:
    """A closing mark inside an argument ends nothing."""
    arguments = '{"city": "</tool_call> } \\" {", "deep": [{"a": ["}"]}]}'
    expect.parts(await probe.both(call_text("get_time", arguments), **TOOLS), arguments=[arguments])


@case("chat", "tools", ours=SCRIPT)
async def unicode_arguments(probe: Probe) -> None:
    """Arguments keep characters of every script, at once and streamed."""
    arguments = '{"city": "Łódź 東京 🏳️‍🌈"}'
    expect.parts(await probe.both(call_text("get_time", arguments), **TOOLS), arguments=[arguments])


@case("chat", "tools", ours=RECORD)
async def result_prompt(probe: Probe) -> None:
    """A result reaches the model with a line end after the call and before the answer."""
    reply = await probe.ask(TIME_CALL, **TOOLS)
    await probe.ask("Noon.", **{**TOOLS, **probe.words.goes_on(reply, TOOLS["messages"], None)})
    expected = f"assistant\n{TIME_CALL}<|im_end|>\n<|im_start|>tool\nnoon<|im_end|>\n<|im_start|>assistant\n"
    expect.equal("the prompt", probe.local.prompt_text(), ending(f"<|im_start|>{expected}"))


@case("chat", "tools", ours=EXTENSION)
async def undecoded_header(probe: Probe) -> None:
    """A call that cannot be decoded is reported in a header and kept with its turn."""
    probe.script(BROKEN_CALL)
    answer = await probe.post(**TOOLS)
    expect.equal("x-ludus-undecoded", answer.headers.get("x-ludus-undecoded", ""), beginning("1"))
    expect.parts(probe.local.turns[0], undecoded=(BROKEN_CALL,))


@case("chat", "tools", ours=SCRIPT)
async def undecoded_streamed(probe: Probe) -> None:
    """Streamed, the text of a call that cannot be decoded is all there."""
    expect.parts(await probe.stream(BROKEN_CALL, **TOOLS), text=BROKEN_CALL, ended="stop")


@case("chat", "tools", ours=SCRIPT)
async def no_tools(probe: Probe) -> None:
    """Without tools, text that looks like a call is text."""
    expect.parts(await probe.both(TIME_CALL), text=TIME_CALL, ended="stop")


@case("chat", "tools", ours=EXTENSION)
async def same_id_on_retry(probe: Probe) -> None:
    """A call keeps its id when its answer is sent again."""
    probe.script(TIME_CALL)
    answers = [await probe.post(**TOOLS, headers={"idempotency-key": "once"}) for _ in range(2)]
    first, second = [answer.json()["choices"][0]["message"] for answer in answers]
    expect.equal("the second answer", second, first)


# ---- forced


@case("chat", "forced tools")
async def named_once(probe: Probe) -> None:
    """A named tool is called once: one call, not several."""
    expect.parts(await forced(probe, tool_choice=probe.words.choose("get_weather")), names=["get_weather"])


@case("chat", "forced tools")
async def required_streamed(probe: Probe) -> None:
    """A forced call streams as a call: id and name first, arguments that add up."""
    chunks = await probe.events(**TOOLS, max_tokens=ROOM, tool_choice="required")
    parts = [part for chunk in chunks for part in chunk.choices[0].delta.tool_calls or ()]
    expect.that("the first part of a call", parts[0].id and parts[0].function.name, "with id and name", parts[0])
    check_city(probe.words.streamed(chunks).arguments[0])


@case("chat", "forced tools", ours=EXTENSION)
async def forced_end(probe: Probe) -> None:
    """An answer that was forced to call ends with tool_calls."""
    expect.parts(await forced(probe, tool_choice="required"), ended="tool_calls")


@case("chat", "forced tools", ours=RECORD)
async def grammar(probe: Probe) -> None:
    """Required: the sampled tokens are drawn under a grammar."""
    await forced(probe, tool_choice="required")
    expect.parts(probe.local.sampling, grammar=FULL)


@case("chat", "forced tools", ours=RECORD)
async def no_grammar(probe: Probe) -> None:
    """Auto: the sampled tokens are free."""
    await forced(probe, tool_choice="auto")
    expect.parts(probe.local.sampling, grammar=None)


@case("chat", "forced tools")
async def one_at_most(probe: Probe) -> None:
    """parallel_tool_calls=false: one call at most."""
    reply = await forced(probe, tool_choice="required", parallel_tool_calls=False)
    expect.equal("number of calls", len(reply.calls), 1)
