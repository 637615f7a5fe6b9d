"""Laws that several protocols have in common, each told once."""

from __future__ import annotations

import json
from typing import Any

from ludus.checks.conformance import expect
from ludus.checks.conformance.case import EXTENSION, RECORD, SCRIPT
from ludus.checks.conformance.cases.asks import (
    BROKEN_CALL,
    CITY,
    POINT,
    ROOM,
    THOUGHT,
    TIME_CALL,
    UNICODE,
    WEATHER_CALL,
    check_city,
    check_point,
)
from ludus.checks.conformance.cases.wires import CHAT, MESSAGES, RESPONSES, Wire, law
from ludus.checks.conformance.probe import ASK, Probe
from ludus.checks.conformance.replies import of_response
from ludus.checks.conformance.sse import DONE

COLOURS = "red green blue white black"
BLANKS = '  Two blanks,\n\n\ttabs \\ and "quotes" — </s> <b> & 100%.\r\n'
# What the engine calls by another name.
OF_ENGINE = {"max_tokens": "max_new_tokens", "max_output_tokens": "max_new_tokens"}


async def check_extends(probe: Probe) -> None:
    """The second turn goes on with the tokens of the first."""
    first, second = probe.local.turns
    expect.equal("prefix and fork of the second turn", (second.prefix, second.fork), (first.id, None))
    before = (*probe.local.calls[0].call.prompt_ids, *first.sampled.token_ids)
    expect.equal("beginning of the second prompt", probe.local.calls[1].call.prompt_ids[: len(before)], before)


def least_room(probe: Probe, wire: Wire) -> int:
    """So few tokens that they cut an answer; OpenAI's own Responses take no limit below 16."""
    return 16 if probe.is_remote and wire is RESPONSES else 3


# ---- text


@law("text/usage", "chat responses messages completions")
async def usage(probe: Probe, wire: Wire) -> None:
    """Usage counts what was read, what was written, and their sum."""
    reply = await wire.ask(probe)
    expect.that("tokens of the prompt", reply.num_prompt, "more than 0", reply.num_prompt)
    expect.that("tokens of the answer", reply.num_sampled, "more than 0", reply.num_sampled)
    if wire is not MESSAGES:
        total = (reply.num_prompt or 0) + (reply.num_sampled or 0)
        expect.equal("total_tokens", reply.raw.usage.total_tokens, total)


@law("text/exact_usage", "chat responses messages", ours=RECORD)
async def exact_usage(probe: Probe, wire: Wire) -> None:
    """Usage is what the engine got and sampled, its last token included."""
    reply = await wire.ask(probe)
    (observed,) = probe.local.calls
    counts = (len(observed.call.prompt_ids), len(observed.token_ids))
    expect.equal("tokens of prompt and answer", (reply.num_prompt, reply.num_sampled), counts)


@law("text/exact", "chat messages completions", ours=SCRIPT)
async def exact(probe: Probe, wire: Wire) -> None:
    """The text is what the model said, to the character."""
    probe.script(BLANKS)
    expect.equal("text", (await wire.ask(probe)).text, BLANKS)


@law("text/system_message", "chat responses=instructions messages=system")
async def system(probe: Probe, wire: Wire) -> None:
    """A system text is read in all its shapes: it makes the prompt longer."""
    plain = (await wire.ask(probe)).num_prompt or 0
    first, *others = [await wire.ask(probe, **told) for told in wire.told("You are a painter of few words.")]
    longer = (first.num_prompt or 0) - plain
    expect.that("tokens of the system text", longer > 4, "more than 4", longer)
    for other in others:
        expect.equal("tokens of the prompt in another shape", other.num_prompt, first.num_prompt)


@law("text/content_parts", "chat responses=input_shapes messages=blocks")
async def shapes(probe: Probe, wire: Wire) -> None:
    """Content in parts is the same prompt as the text in one piece."""
    counts = [(await wire.ask(probe, **asked)).num_prompt for asked in wire.asked("Name some colours.")]
    expect.equal("tokens of the prompts", counts[1:], counts[:1] * (len(counts) - 1))


@law("text/reply_as_history", "chat responses=items_back messages=blocks_back")
async def sent_back(probe: Probe, wire: Wire) -> None:
    """A reply can be sent back as the SDK's own object, and the prompt grows by it."""
    first = await wire.ask(probe)
    second = await wire.ask(probe, **wire.goes_on(first, ASK, "More."))
    before, after = first.num_prompt or 0, second.num_prompt or 0
    expect.that("tokens of the prompt", after > before, f"more than {before}", after)


@law("text/shown_id", "responses messages completions", ours=RECORD)
async def shown_id(probe: Probe, wire: Wire) -> None:
    """Its id has the protocol's beginning and leads to the turn."""
    told = (await wire.ask(probe)).id
    expect.that("id", told.startswith(wire.id_prefix), f"beginning with {wire.id_prefix}", told)
    expect.equal("end of the turn's id", probe.local.turns[0].id.split("-")[-1], told.removeprefix(wire.id_prefix))


@law("unicode/unicode_stream", "chat responses=unicode_text messages=unicode_text completions", ours=SCRIPT)
async def unicode_text(probe: Probe, wire: Wire) -> None:
    """Text of many scripts arrives to the character, at once and streamed."""
    probe.script(UNICODE, UNICODE)
    expect.equal("text", (await wire.ask(probe)).text, UNICODE)
    expect.equal("the deltas together", (await wire.stream(probe)).text, UNICODE)


@law("n/two_choices", "chat completions=two")
async def two_choices(probe: Probe, wire: Wire) -> None:
    """n=2 gives two choices, numbered from 0."""
    answer = (await wire.ask(probe, n=2, temperature=1, seed=3)).raw
    expect.equal("indices", [choice.index for choice in answer.choices], [0, 1])


# ---- streaming


@law("streaming/adds_up", "chat responses completions")
async def adds_up(probe: Probe, wire: Wire) -> None:
    """The deltas add up to the answer that the same request gets at once."""
    whole = await wire.ask(probe)
    expect.equal("the streamed reply", await wire.stream(probe), whole)


@law("streaming/same_usage", "chat responses messages=end")
async def same_usage(probe: Probe, wire: Wire) -> None:
    """Streamed, the end and the counts of tokens are those of the answer at once."""
    told = [await wire.ask(probe), await wire.stream(probe, **wire.counted)]
    whole, streamed = [(reply.ended, reply.num_prompt, reply.num_sampled) for reply in told]
    expect.equal("end, tokens of the prompt and of the answer", streamed, whole)


@law("streaming/wire", "chat responses messages")
async def on_the_wire(probe: Probe, wire: Wire) -> None:
    """The stream is text/event-stream, every event one line of JSON under its type's name."""
    streamed = await probe.streamed(wire.path, wire.fields(probe))
    kind = streamed.headers.get("content-type", "")
    expect.that("content-type", kind.startswith("text/event-stream"), "text/event-stream", kind)
    events = [event for event in streamed.events if event.data != DONE]
    for event in events:
        expect.equal("name of the event", event.name, expect.json_object("the event", event.data).get("type"))
    holders = [event.json.get("response", event.json.get("message", event.json)) for event in events]
    expect.equal("number of different ids", len({holder["id"] for holder in holders if "id" in holder}), 1)
    if wire is MESSAGES:
        expect.equal("the last event", streamed.events[-1].name, "message_stop")


@law("streaming/done", "chat completions")
async def done(probe: Probe, wire: Wire) -> None:
    """The stream ends with [DONE], once, after chunks of one id and kind."""
    events = (await probe.streamed(wire.path, wire.fields(probe))).events
    expect.equal("the last event", events[-1].data, DONE)
    expect.equal("number of [DONE]", sum(event.data == DONE for event in events), 1)
    heads = {(event.json["id"], event.json["object"]) for event in events[:-1]}
    expect.equal("number of different ids and objects", len(heads), 1)


@law("streaming/usage_chunk", "chat completions")
async def usage_chunk(probe: Probe, wire: Wire) -> None:
    """Asked for, usage comes in a last chunk without choices, and in no other."""
    chunks = (await wire.stream(probe, stream_options={"include_usage": True})).raw
    expect.equal("choices of the last chunk", chunks[-1].choices, [])
    expect.that("usage of the last chunk", chunks[-1].usage is not None, "counts", chunks[-1].usage)
    expect.equal("other chunks with usage", [chunk for chunk in chunks[:-1] if chunk.usage is not None], [])


@law("streaming/truly_streamed", "chat messages", ours=SCRIPT)
async def truly_streamed(probe: Probe, wire: Wire) -> None:
    """Text leaves while it is sampled: a client has the first words before the last."""
    probe.script(COLOURS)
    token_gate = probe.local.hold_tokens(3)
    told = early = ""
    async with probe.open_stream(wire.path, wire.fields(probe)) as lines:
        async for line in lines:
            if line.startswith("data: {"):
                told += wire.said(json.loads(line.removeprefix("data: ")))
            if told and not token_gate.is_released:
                early = told
                token_gate.release()
    expect.that("text before the engine went on", COLOURS.startswith(early) and early != COLOURS, "a beginning", early)
    expect.equal("the whole text", told, COLOURS)


# ---- stop, limits, sampling


@law("stop/stop_string", "chat messages=stop_general completions=stop")
async def stop(probe: Probe, wire: Wire) -> None:
    """An answer ends before its stop string."""
    text = (await wire.ask(probe, **wire.stop)).text
    expect.that("the text", "e" not in text, "no 'e' in it", text)


@law("limits/limit", "chat=max_tokens responses messages completions")
async def limit(probe: Probe, wire: Wire) -> None:
    """A limit ends an answer: not one token more, and its end says so."""
    probe.script(COLOURS)
    room = least_room(probe, wire)
    reply = await wire.ask(probe, **{wire.limit: room})
    expect.equal("number of tokens", reply.num_sampled, room)
    expect.equal("how it ended", reply.ended, wire.cut)


@law("limits/limit_streamed", "chat responses")
async def limit_streamed(probe: Probe, wire: Wire) -> None:
    """A limit streamed: the end says so too."""
    probe.script(COLOURS)
    expect.equal("how it ended", (await wire.stream(probe, **{wire.limit: least_room(probe, wire)})).ended, wire.cut)


@law("sampling fields/fields_act", "chat responses messages", ours=RECORD)
async def fields_act(probe: Probe, wire: Wire) -> None:
    """What a request names is what the engine samples with."""
    await probe.post(wire.path, wire.fields(probe, **wire.sampling))
    sampling = probe.local.calls[0].call.sampling
    acting = {name: getattr(sampling, OF_ENGINE.get(name, name)) for name in wire.sampling}
    expect.equal("sampling", acting, wire.sampling)


@law("sampling fields/same_seed", "chat completions=seed")
async def same_seed(probe: Probe, wire: Wire) -> None:
    """The same seed gives the same answer."""
    first, second = [(await wire.ask(probe, temperature=1, seed=11, max_tokens=16)).text for _ in range(2)]
    expect.equal("the second answer", second, first)


# ---- headers, retries


@law("headers/ignored", "chat responses messages completions", ours=EXTENSION)
async def ignored(probe: Probe, wire: Wire) -> None:
    """Fields without effect are named in x-ludus-ignored, streamed too."""
    body = wire.fields(probe, **wire.ignored)
    for answer in (await probe.post(wire.path, body), await probe.streamed(wire.path, body)):
        told = sorted(answer.headers.get("x-ludus-ignored", "").split(", "))
        expect.equal("x-ludus-ignored", told, sorted(wire.ignored))


@law("retries/retry", "responses messages completions", ours=SCRIPT)
async def retry(probe: Probe, wire: Wire) -> None:
    """An answer that is asked for again is one turn and one answer."""
    probe.script("red", "green")
    told = [await wire.ask(probe, extra_headers={"x-stainless-retry-count": str(count)}) for count in range(2)]
    expect.equal("the second id and text", (told[1].id, told[1].text), (told[0].id, "red"))
    expect.equal("number of turns", len(probe.local.turns), 1)


# ---- tools


@law("tools/extends", "chat responses messages", ours=RECORD)
async def extends(probe: Probe, wire: Wire) -> None:
    """After a call and its result the second turn extends the first, token by token."""
    probe.script(f"I look it up.\n{WEATHER_CALL}\n{TIME_CALL}", "It is noon.")
    calling: Any = wire.calling
    reply = await wire.ask(probe, **calling)
    asked = calling["input" if wire is RESPONSES else "messages"]
    await wire.ask(probe, **{**calling, **wire.goes_on(reply, asked, None)})
    await check_extends(probe)


@law("tools/undecoded", "chat responses messages", ours=SCRIPT)
async def undecoded(probe: Probe, wire: Wire) -> None:
    """A call that cannot be decoded stays in the text, and the end is that of a text."""
    probe.script(BROKEN_CALL, BROKEN_CALL)
    replies = [await wire.ask(probe, **wire.calling)]
    if wire is RESPONSES:  # its stream ends with the whole
        replies.append(of_response((await wire.stream(probe, **wire.calling)).raw[-1].response))
    for reply in replies:
        told = (reply.calls, reply.text, reply.ended)
        expect.equal("calls, text and end", told, ((), BROKEN_CALL, wire.ended))


@law("tools/choice_none", "chat responses messages")
async def choice_none(probe: Probe, wire: Wire) -> None:
    """tool_choice none: no calls, whatever the model says."""
    probe.script(TIME_CALL)
    reply = await wire.ask(probe, **{**wire.calling, "tool_choice": wire.no_calls})
    expect.equal("calls", reply.calls, ())
    expect.one_of("how it ended", reply.ended, (wire.ended, wire.cut))


@law("forced tools/required", "chat responses messages=any_tool")
async def required(probe: Probe, wire: Wire) -> None:
    """A call can be required: at least one, with arguments that fit the schema."""
    reply = await wire.ask(probe, **{**wire.calling, "tool_choice": wire.must_call, wire.limit: ROOM})
    expect.that("calls", reply.calls, "at least one", reply)
    for call in reply.calls:
        expect.one_of("name of a call", call.name, ("get_weather", "get_time"))
        check_city(call.arguments)
    if wire is not CHAT:
        expect.equal("how it ended", reply.ended, wire.called)


@law("forced tools/named", "chat responses messages")
async def named(probe: Probe, wire: Wire) -> None:
    """A named tool is the one that is called, once, with arguments that fit its schema."""
    reply = await wire.ask(probe, **{**wire.calling, "tool_choice": wire.call_time, wire.limit: ROOM})
    expect.equal("names", reply.names, ["get_time"])
    check_city(reply.calls[0].arguments)


@law("forced tools/one_at_most", "chat=ends_after_first responses messages", ours=SCRIPT)
async def one_at_most(probe: Probe, wire: Wire) -> None:
    """Where calls are not to be parallel an answer ends after its first call."""
    probe.script(f"{WEATHER_CALL}\n{TIME_CALL}")
    reply = await wire.ask(probe, **{**wire.calling, **wire.one_call})
    expect.equal("names", reply.names, ["get_weather"])
    expect.equal("how it ended", reply.ended, wire.called)


@law("forced tools/strict", "chat responses")
async def strict(probe: Probe, wire: Wire) -> None:
    """A strict tool is taken, and forced its arguments fit the schema."""
    function = {"name": "get_weather", "description": "The weather.", "parameters": CITY, "strict": True}
    tool = {"type": "function", **({"function": function} if wire is CHAT else function)}
    forced = {"tools": [tool], "tool_choice": "required", wire.limit: ROOM}
    reply = await wire.ask(probe, **{**wire.calling, **forced})
    check_city(reply.calls[0].arguments)


# ---- JSON, thinking


@law("structured output/schema", "chat responses")
async def schema(probe: Probe, wire: Wire) -> None:
    """json_schema: the text is JSON that fits the schema, at once and streamed."""
    for ask in (wire.ask, wire.stream):
        check_point((await ask(probe, **wire.formed(POINT))).text)


@law("reasoning/thinking_back", "chat=thinking_sent_back responses messages", ours=RECORD)
async def thinking_back(probe: Probe, wire: Wire) -> None:
    """Thinking that is sent back leaves the tokens as they were sampled."""
    probe.script(THOUGHT)
    await wire.ask(probe, **wire.goes_on(await wire.ask(probe), ASK, "And in Rome?"))
    await check_extends(probe)
