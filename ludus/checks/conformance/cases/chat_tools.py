"""Chat Completions with tools: calls at once and as they come, results sent back, calls that are forced."""

from __future__ import annotations

import json
from typing import Any

from ludus.checks.conformance import expect
from ludus.checks.conformance.case import EXTENSION, RECORD, SCRIPT, case
from ludus.checks.conformance.cases.asks import (
    ASK_WEATHER,
    BROKEN_CALL,
    CHAT_TOOLS,
    ROOM,
    TIME_ARGUMENTS,
    TIME_CALL,
    WEATHER_ARGUMENTS,
    WEATHER_CALL,
    call_text,
    check_city,
)
from ludus.checks.conformance.probe import Probe
from ludus.checks.conformance.replies import Reply, of_choice, of_chunks

TOOLS: dict[str, Any] = {"messages": ASK_WEATHER, "tools": CHAT_TOOLS}
NAMES = ("get_weather", "get_time")


async def reply_to(probe: Probe, **fields: Any) -> Reply:
    return of_choice((await probe.chat(**{**TOOLS, **fields})).choices[0])


def history(*calls: tuple[str, str, str]) -> list[dict[str, Any]]:
    """The question, an assistant's message with these calls (id, name, arguments), and a result for each."""
    called = [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        for call_id, name, arguments in calls
    ]
    results = [{"role": "tool", "tool_call_id": call_id, "content": "18 degrees"} for call_id, _, _ in calls]
    return [*ASK_WEATHER, {"role": "assistant", "content": None, "tool_calls": called}, *results]


@case("chat", "tools")
async def offered(probe: Probe) -> None:
    """Offered tools are taken: the answer is text, or calls of these tools with JSON arguments."""
    reply = await reply_to(probe)
    expect.that("the answer", reply.text or reply.calls, "text or calls", reply)
    for call in reply.calls:
        expect.one_of("name of a call", call.name, NAMES)
        expect.json_object("arguments of a call", call.arguments)


@case("chat", "tools")
async def shown(probe: Probe) -> None:
    """The tools are shown to the model: they make the prompt longer."""
    plain = (await probe.chat(messages=ASK_WEATHER)).usage.prompt_tokens
    with_tools = (await probe.chat(**TOOLS)).usage.prompt_tokens
    expect.that("prompt_tokens with tools", with_tools > plain, f"more than {plain}", with_tools)


@case("chat", "tools", ours=SCRIPT)
async def one_call(probe: Probe) -> None:
    """A call has an id, a type, its name and its arguments; its end is tool_calls."""
    probe.script(TIME_CALL)
    choice = (await probe.chat(**TOOLS)).choices[0]
    expect.equal("finish_reason", choice.finish_reason, "tool_calls")
    expect.equal("content", choice.message.content, None)
    (call,) = choice.message.tool_calls
    expect.equal("type", call.type, "function")
    expect.text("id", call.id)
    expect.equal("name", call.function.name, "get_time")
    expect.equal("arguments", call.function.arguments, TIME_ARGUMENTS)


@case("chat", "tools", ours=SCRIPT)
async def arguments_as_sampled(probe: Probe) -> None:
    """Arguments are the text that was sampled: blanks, escapes and order stay."""
    probe.script(WEATHER_CALL)
    expect.equal("arguments", (await reply_to(probe)).calls[0].arguments, WEATHER_ARGUMENTS)


@case("chat", "tools", ours=SCRIPT)
async def streamed_as_sampled(probe: Probe) -> None:
    """Streamed arguments are the text that was sampled."""
    probe.script(WEATHER_CALL)
    reply = of_chunks(await probe.chat_chunks(**TOOLS))
    expect.equal("arguments", [call.arguments for call in reply.calls], [WEATHER_ARGUMENTS])


@case("chat", "tools", ours=SCRIPT)
async def two_calls(probe: Probe) -> None:
    """Two calls in one answer are both there, in order, with ids of their own."""
    probe.script(f"{WEATHER_CALL}\n{TIME_CALL}")
    calls = (await reply_to(probe)).calls
    expect.equal("names", [call.name for call in calls], ["get_weather", "get_time"])
    expect.equal("number of different ids", len({call.id for call in calls}), 2)


@case("chat", "tools", ours=SCRIPT)
async def two_calls_streamed(probe: Probe) -> None:
    """Two calls stream under the indices 0 and 1, each with its id and name once."""
    probe.script(f"{WEATHER_CALL}\n{TIME_CALL}")
    chunks = await probe.chat_chunks(**TOOLS)
    parts = [part for chunk in chunks for part in chunk.choices[0].delta.tool_calls or ()]
    for index, name in enumerate(NAMES):
        own = [part for part in parts if part.index == index]
        expect.equal(f"names under index {index}", [p.function.name for p in own if p.function.name], [name])
        expect.equal(f"number of ids under index {index}", len([part.id for part in own if part.id]), 1)
        expect.that(f"the first part under index {index}", own[0].id, "the one with the id", own[0])
    reply = of_chunks(chunks)
    expect.equal("arguments", [call.arguments for call in reply.calls], [WEATHER_ARGUMENTS, TIME_ARGUMENTS])
    expect.equal("how it ended", reply.ended, "tool_calls")


@case("chat", "tools", ours=SCRIPT)
async def streamed_calls(probe: Probe) -> None:
    """Streamed calls are those of the answer at once."""
    said = f"I look it up.\n{WEATHER_CALL}\n{TIME_CALL}"
    probe.script(said, said)
    whole, streamed = await reply_to(probe), of_chunks(await probe.chat_chunks(**TOOLS))
    expect.equal("text", streamed.text, whole.text)
    expect.equal("how it ended", streamed.ended, whole.ended)
    expect.equal("calls", _contents(streamed), _contents(whole))


@case("chat", "tools", ours=SCRIPT)
async def helper(probe: Probe) -> None:
    """The SDK's stream helper puts together the calls."""
    probe.script(f"{WEATHER_CALL}\n{TIME_CALL}")
    async with probe.openai.chat.completions.stream(**probe.chat_fields(**TOOLS)) as stream:
        reply = of_choice((await stream.get_final_completion()).choices[0])
    expect.equal("calls", _contents(reply), [("get_weather", WEATHER_ARGUMENTS), ("get_time", TIME_ARGUMENTS)])


@case("chat", "tools", ours=SCRIPT)
async def arguments_in_pieces(probe: Probe) -> None:
    """Arguments leave while they are sampled, not in one piece."""
    probe.script(WEATHER_CALL)
    chunks = await probe.chat_chunks(**TOOLS)
    parts = [part for chunk in chunks for part in chunk.choices[0].delta.tool_calls or () if part.function.arguments]
    expect.that("number of pieces", len(parts) > 3, "more than 3", len(parts))


@case("chat", "tools", ours=SCRIPT)
async def text_before(probe: Probe) -> None:
    """Text before a call stays text."""
    probe.script(f"I look it up.\n{TIME_CALL}")
    reply = await reply_to(probe)
    expect.equal("text", reply.text, "I look it up.")
    expect.equal("number of calls", len(reply.calls), 1)


@case("chat", "tools", ours=SCRIPT)
async def mark_inside(probe: Probe) -> None:
    """A closing mark inside an argument ends nothing."""
    arguments = '{"city": "</tool_call> } \\" {", "deep": [{"a": ["}"]}]}'
    probe.script(call_text("get_time", arguments))
    expect.equal("arguments", [call.arguments for call in (await reply_to(probe)).calls], [arguments])


@case("chat", "tools", ours=SCRIPT)
async def unicode_arguments(probe: Probe) -> None:
    """Arguments keep characters of every script, at once and streamed."""
    arguments = '{"city": "Łódź 東京 🏳️‍🌈"}'
    probe.script(call_text("get_time", arguments), call_text("get_time", arguments))
    expect.equal("arguments", (await reply_to(probe)).calls[0].arguments, arguments)
    streamed = of_chunks(await probe.chat_chunks(**TOOLS))
    expect.equal("streamed arguments", streamed.calls[0].arguments, arguments)


@case("chat", "tools")
async def results(probe: Probe) -> None:
    """Results are taken back, one for each call, in any order."""
    messages = history(("call_a", "get_weather", '{"city": "Paris"}'), ("call_b", "get_time", '{"city": "Paris"}'))
    for order in (messages, [*messages[:-2], messages[-1], messages[-2]]):
        answer = await probe.chat(messages=order, tools=CHAT_TOOLS)
        expect.that("usage", answer.usage.completion_tokens > 0, "an answer", answer.usage)


@case("chat", "tools", ours=RECORD)
async def result_prompt(probe: Probe) -> None:
    """A result reaches the model with a line end after the call and before the answer."""
    probe.script(TIME_CALL, "18 degrees.")
    (call,) = (await reply_to(probe)).calls
    await probe.chat(messages=history((call.id, call.name, call.arguments)), tools=CHAT_TOOLS)
    expected = (
        f"<|im_start|>assistant\n{TIME_CALL}<|im_end|>\n<|im_start|>tool\n18 degrees<|im_end|>\n<|im_start|>assistant\n"
    )
    prompt = probe.local.prompt_text()
    expect.that("end of the prompt", prompt.endswith(expected), repr(expected), prompt[-len(expected) - 20 :])


@case("chat", "tools", ours=EXTENSION)
async def undecoded_header(probe: Probe) -> None:
    """A call that cannot be decoded is reported in a header and kept with its turn."""
    probe.script(BROKEN_CALL)
    raw = await probe.openai.chat.completions.with_raw_response.create(**probe.chat_fields(**TOOLS))
    told = raw.headers.get("x-ludus-undecoded", "")
    expect.that("x-ludus-undecoded", told.startswith("1"), "1 and the text", told)
    expect.equal("undecoded texts of the turn", probe.local.turns[0].undecoded, (BROKEN_CALL,))


@case("chat", "tools", ours=SCRIPT)
async def undecoded_streamed(probe: Probe) -> None:
    """Streamed, the text of a call that cannot be decoded is all there."""
    probe.script(BROKEN_CALL)
    reply = of_chunks(await probe.chat_chunks(**TOOLS))
    expect.equal("text", reply.text, BROKEN_CALL)
    expect.equal("how it ended", reply.ended, "stop")


@case("chat", "tools", ours=SCRIPT)
async def no_tools(probe: Probe) -> None:
    """Without tools, text that looks like a call is text."""
    probe.script(TIME_CALL)
    reply = of_choice((await probe.chat()).choices[0])
    expect.equal("text", reply.text, TIME_CALL)
    expect.equal("how it ended", reply.ended, "stop")


@case("chat", "tools")
async def empty_tools(probe: Probe) -> None:
    """An empty list of tools is no tools."""
    answer = await probe.chat(tools=[])
    expect.text("content", answer.choices[0].message.content)


@case("chat", "tools")
async def no_parameters(probe: Probe) -> None:
    """A tool without parameters is taken."""
    tool = {"type": "function", "function": {"name": "get_date"}}
    answer = await probe.chat(messages=ASK_WEATHER, tools=[tool])
    expect.that("usage", answer.usage.completion_tokens > 0, "an answer", answer.usage)


# ---- forced


@case("chat", "forced tools")
async def named_once(probe: Probe) -> None:
    """A named tool is called once: one call, not several."""
    reply = await reply_to(
        probe, max_tokens=ROOM, tool_choice={"type": "function", "function": {"name": "get_weather"}}
    )
    expect.equal("number of calls", len(reply.calls), 1)


@case("chat", "forced tools")
async def required_streamed(probe: Probe) -> None:
    """A forced call streams as a call: id and name first, arguments that add up."""
    chunks = await probe.chat_chunks(**TOOLS, max_tokens=ROOM, tool_choice="required")
    parts = [part for chunk in chunks for part in chunk.choices[0].delta.tool_calls or ()]
    expect.that("parts of calls", parts, "at least one", parts)
    expect.that("the first part", parts[0].id and parts[0].function.name, "with id and name", parts[0])
    check_city(of_chunks(chunks).calls[0].arguments)


@case("chat", "forced tools", ours=EXTENSION)
async def forced_end(probe: Probe) -> None:
    """An answer that was forced to call ends with tool_calls."""
    expect.equal("how it ended", (await reply_to(probe, max_tokens=ROOM, tool_choice="required")).ended, "tool_calls")


@case("chat", "forced tools", ours=RECORD)
async def grammar(probe: Probe) -> None:
    """Required: the sampled tokens are drawn under a grammar."""
    await reply_to(probe, max_tokens=ROOM, tool_choice="required")
    sampling = probe.local.calls[0].call.sampling
    expect.that("grammar of the engine's call", sampling.grammar, "one", sampling.grammar)


@case("chat", "forced tools", ours=RECORD)
async def no_grammar(probe: Probe) -> None:
    """Auto: the sampled tokens are free."""
    await reply_to(probe, max_tokens=ROOM, tool_choice="auto")
    expect.equal("grammar of the engine's call", probe.local.calls[0].call.sampling.grammar, None)


@case("chat", "forced tools")
async def one_at_most(probe: Probe) -> None:
    """parallel_tool_calls=false: one call at most."""
    reply = await reply_to(probe, max_tokens=ROOM, tool_choice="required", parallel_tool_calls=False)
    expect.equal("number of calls", len(reply.calls), 1)


def _contents(reply: Reply) -> list[tuple[str, str]]:
    return [(call.name, call.arguments) for call in reply.calls]


@case("chat", "tools", ours=EXTENSION)
async def same_id_on_retry(probe: Probe) -> None:
    """A call keeps its id when its answer is sent again."""
    probe.script(TIME_CALL)
    body = json.dumps(probe.chat_fields(**TOOLS)).encode()
    headers = {"idempotency-key": "once"}
    answers = [
        (await probe.post("/chat/completions", content=body, headers=headers)).json()["choices"][0]["message"]
        for _ in range(2)
    ]
    expect.equal("the second answer", answers[1], answers[0])
