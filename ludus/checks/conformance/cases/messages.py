"""Anthropic Messages: blocks, the order of events, limits, counting tokens, errors of that protocol."""

from __future__ import annotations

import json
from typing import Any

from ludus.checks.conformance import expect
from ludus.checks.conformance.case import EXTENSION, RECORD, SCRIPT, SESSIONS, case
from ludus.checks.conformance.cases.asks import (
    MESSAGE_TOOLS,
    UNICODE,
    check_error,
)
from ludus.checks.conformance.probe import ASK, Probe
from ludus.checks.conformance.replies import num_input_tokens, of_message
from ludus.errors import BackendError

PATH = "/messages"
ENDS = ("end_turn", "max_tokens")


# ---- text


@case("messages", "text", "a message has every part that the protocol names")
async def parts(probe: Probe) -> None:
    message = await probe.message()
    expect.equal("type", message.type, "message")
    expect.equal("role", message.role, "assistant")
    expect.text("id", message.id)
    expect.text("model", message.model)
    expect.one_of("stop_reason", message.stop_reason, ENDS)
    expect.equal("stop_sequence", message.stop_sequence, None)
    expect.equal("types of the blocks", [block.type for block in message.content], ["text"])
    expect.text("text", message.content[0].text)


@case("messages", "text", "usage counts what was read and what was written")
async def usage(probe: Probe) -> None:
    counts = (await probe.message()).usage
    expect.that("input_tokens", num_input_tokens(counts) > 0, "more than 0", counts.input_tokens)
    expect.that("output_tokens", counts.output_tokens > 0, "more than 0", counts.output_tokens)


@case("messages", "text", "usage is what the engine got and sampled", ours=RECORD)
async def exact_usage(probe: Probe) -> None:
    counts = (await probe.message()).usage
    (heard,) = probe.own.calls
    expect.equal("input_tokens", num_input_tokens(counts), len(heard.call.prompt_ids))
    expect.equal("output_tokens", counts.output_tokens, len(heard.token_ids))


@case("messages", "text", "system is read, as text and as blocks alike")
async def system(probe: Probe) -> None:
    words = "You are a painter of few words."
    plain = num_input_tokens((await probe.message()).usage)
    told = num_input_tokens((await probe.message(system=words)).usage)
    in_blocks = num_input_tokens((await probe.message(system=[{"type": "text", "text": words}])).usage)
    expect.that("tokens of the system text", told > plain + 4, f"more than {plain + 4}", told)
    expect.equal("tokens of it in blocks", in_blocks, told)


@case("messages", "text", "content in text blocks is the same prompt as the text in one piece")
async def blocks(probe: Probe) -> None:
    whole = await probe.message(messages=[{"role": "user", "content": "Name a colour."}])
    content = [{"type": "text", "text": "Name a colour."}]
    in_blocks = await probe.message(messages=[{"role": "user", "content": content}])
    expect.equal("input_tokens", num_input_tokens(in_blocks.usage), num_input_tokens(whole.usage))


@case("messages", "text", "the blocks of a message can be sent back as they are, and the prompt grows")
async def blocks_back(probe: Probe) -> None:
    first = await probe.message()
    content = [block.model_dump(exclude_none=True) for block in first.content]
    messages = [*ASK, {"role": "assistant", "content": content}, {"role": "user", "content": "More."}]
    second = await probe.message(messages=messages)
    before, after = num_input_tokens(first.usage), num_input_tokens(second.usage)
    expect.that("input tokens", after > before, f"more than {before}", after)


@case("messages", "text", "its id begins with msg_ and leads to the turn", ours=RECORD)
async def shown_id(probe: Probe) -> None:
    message_id = (await probe.message()).id
    expect.that("id", message_id.startswith("msg_"), "beginning with msg_", message_id)
    expect.equal("end of the turn's id", probe.own.turns[0].id.split("-")[-1], message_id.removeprefix("msg_"))


@case("messages", "text", "the text is what the model said, to the character", ours=SCRIPT)
async def exact(probe: Probe) -> None:
    said = '  Two blanks,\n\n\ttabs \\ and "quotes" — <b> & 100%.\r\n'
    probe.script(said)
    expect.equal("text", of_message(await probe.message()).text, said)


@case("messages", "unicode", "text of many scripts arrives to the character, at once and streamed", ours=SCRIPT)
async def unicode_text(probe: Probe) -> None:
    probe.script(UNICODE, UNICODE)
    expect.equal("text", of_message(await probe.message()).text, UNICODE)
    deltas = [e.delta.text for e in await probe.message_events() if e.type == "content_block_delta"]
    expect.equal("deltas with a broken character", [delta for delta in deltas if "\ufffd" in delta], [])
    expect.equal("the deltas together", "".join(deltas), UNICODE)


# ---- streaming


async def kinds_of(probe: Probe, **fields: Any) -> list[str]:
    return [event.type for event in await probe.message_events(**fields) if event.type != "ping"]


@case("messages", "streaming", "the stream is message_start, blocks, message_delta, message_stop")
async def order(probe: Probe) -> None:
    kinds = await kinds_of(probe)
    told = [kind for idx, kind in enumerate(kinds) if idx == 0 or kind != kinds[idx - 1]]
    expected = [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    expect.equal("order of the events", told, expected)


@case("messages", "streaming", "message_start holds an empty message with its id and the tokens that were read")
async def start(probe: Probe) -> None:
    message = (await probe.message_events())[0].message
    expect.equal("content", list(message.content), [])
    expect.equal("stop_reason", message.stop_reason, None)
    expect.text("id", message.id)
    expect.that("input_tokens", num_input_tokens(message.usage) > 0, "more than 0", message.usage)


@case("messages", "streaming", "message_delta tells how it ended and how many tokens were written")
async def end(probe: Probe) -> None:
    whole = await probe.message()
    (delta,) = [event for event in await probe.message_events() if event.type == "message_delta"]
    expect.equal("stop_reason", delta.delta.stop_reason, whole.stop_reason)
    expect.equal("output_tokens", delta.usage.output_tokens, whole.usage.output_tokens)


@case("messages", "streaming", "the SDK's stream helper puts together the message that comes at once")
async def helper(probe: Probe) -> None:
    async with probe.anthropic.messages.stream(**probe.message_arguments()) as stream:
        final = await stream.get_final_message()
    whole = await probe.message()
    expect.equal("the message", of_message(final), of_message(whole))
    expect.equal("output_tokens", final.usage.output_tokens, whole.usage.output_tokens)


@case("messages", "streaming", "blocks are numbered from 0, and each delta is inside its own block")
async def indices(probe: Probe) -> None:
    open_block, opened = None, []
    for event in await probe.message_events():
        if event.type == "content_block_start":
            expect.equal("the open block", open_block, None)
            open_block = event.index
            opened.append(event.index)
        elif event.type in ("content_block_delta", "content_block_stop"):
            expect.equal(f"index of {event.type}", event.index, open_block)
            open_block = None if event.type == "content_block_stop" else open_block
    expect.rising("indices of the blocks", opened, start=0)


@case("messages", "streaming", "on the wire every event has its type as its name, and there is no [DONE]")
async def wire(probe: Probe) -> None:
    streamed = await probe.streamed(PATH, probe.message_fields())
    kind = streamed.headers.get("content-type", "")
    expect.that("content-type", kind.startswith("text/event-stream"), "text/event-stream", kind)
    events = streamed.events
    for event in events:
        expect.equal("name of the event", event.name, expect.json_object("the event", event.data).get("type"))
    expect.equal("the last event", events[-1].name, "message_stop")


@case(
    "messages",
    "streaming",
    "text leaves while it is sampled: a client has the first words before the last",
    ours=SCRIPT,
)
async def truly_streamed(probe: Probe) -> None:
    said = "red green blue white black"
    probe.script(said)
    curtain = probe.own.lower_curtain(3)
    told = early = ""
    async with probe.open_stream(PATH, probe.message_fields()) as lines:
        async for line in lines:
            if "text_delta" in line and line.startswith("data: "):
                told += json.loads(line.removeprefix("data: "))["delta"]["text"]
            if told and not curtain.is_raised:
                early = told
                curtain.raise_()
    expect.that("text before the engine went on", said.startswith(early) and early != said, "a beginning", early)
    expect.equal("the whole text", told, said)


# ---- stop, limits, sampling


@case("messages", "stop", "an answer ends before its stop sequence", ours=SCRIPT)
async def stop(probe: Probe) -> None:
    probe.script("red green blue white")
    message = await probe.message(stop_sequences=["blue w", " white"])
    expect.equal("text", of_message(message).text, "red green ")
    expect.equal("stop_reason", message.stop_reason, "stop_sequence")
    expect.equal("stop_sequence", message.stop_sequence, "blue w")


@case("messages", "stop", "no stop sequence is in the answer")
async def stop_general(probe: Probe) -> None:
    text = of_message(await probe.message(stop_sequences=["e"])).text
    expect.that("the text", "e" not in text, "no 'e' in it", text)


@case("messages", "limits", "max_tokens ends an answer: not one token more, and the end is max_tokens")
async def limit(probe: Probe) -> None:
    probe.script("red green blue white black")
    message = await probe.message(max_tokens=3)
    expect.equal("output_tokens", message.usage.output_tokens, 3)
    expect.equal("stop_reason", message.stop_reason, "max_tokens")


@case("messages", "sampling fields", "what a request names is what the engine samples with", ours=RECORD)
async def fields_act(probe: Probe) -> None:
    await probe.message(temperature=0.7, top_p=0.9, top_k=40, max_tokens=30)
    sampling = probe.own.calls[0].call.sampling
    got = (sampling.temperature, sampling.top_p, sampling.top_k, sampling.max_new_tokens)
    expect.equal("temperature, top_p, top_k, limit", got, (0.7, 0.9, 40, 30))


# ---- errors, headers, keys


@case("messages", "errors", "the SDK raises BadRequestError")
async def sdk_error(probe: Probe) -> None:
    told = await probe.refused(probe.message(messages=[{"role": "king", "content": "Hello."}]))
    expect.equal("exception", told.kind, "BadRequestError")


@case("messages", "errors", "a failing engine is a 500 api_error that may be sent again", ours=SCRIPT)
async def backend(probe: Probe) -> None:
    probe.own.script(BackendError("out of memory"))
    answer = await probe.post(PATH, probe.message_fields())
    expect.equal("type of the error", check_error(answer, 500, of_messages=True)["type"], "api_error")
    expect.equal("x-should-retry", answer.headers.get("x-should-retry"), "true")


@case("messages", "headers", "beta and version headers, cache marks and metadata are taken")
async def harmless(probe: Probe) -> None:
    marked = [{"type": "text", "text": "Name a colour.", "cache_control": {"type": "ephemeral"}}]
    message = await probe.message(
        messages=[{"role": "user", "content": marked}],
        metadata={"user_id": "me"},
        extra_headers={"anthropic-beta": "prompt-caching-2024-07-31,token-efficient-tools-2025-02-19"},
    )
    expect.one_of("stop_reason", message.stop_reason, ENDS)


@case("messages", "headers", "what has no effect is named in x-ludus-ignored", ours=EXTENSION)
async def ignored(probe: Probe) -> None:
    body = probe.message_fields(metadata={"user_id": "me"}, service_tier="auto")
    answer = await probe.post(PATH, body)
    told = sorted(answer.headers.get("x-ludus-ignored", "").split(", "))
    expect.equal("x-ludus-ignored", told, ["metadata", "service_tier"])


@case("messages", "keys", "the SDK's key in x-api-key names the session", ours=SESSIONS)
async def key(probe: Probe) -> None:
    _, client = probe.with_key(probe.own.secret, root=probe.own.gateway)
    await client.messages.create(**probe.message_arguments())
    expect.equal("number of turns", len(probe.own.turns), 1)


@case("messages", "keys", "a key that names no session is a 401 authentication_error", ours=SESSIONS)
async def wrong_key(probe: Probe) -> None:
    _, client = probe.with_key("sk-ant-wrong-0123456789", root=probe.own.gateway)
    told = await probe.refused(client.messages.create(**probe.message_arguments()), status=401)
    expect.equal("exception", told.kind, "AuthenticationError")
    expect.equal("type of the error", told.error.get("type"), "authentication_error")


@case("messages", "retries", "a message that is asked for again is one turn and one answer", ours=SCRIPT)
async def retry(probe: Probe) -> None:
    probe.script("red", "green")
    ids = [(await probe.message(extra_headers={"x-stainless-retry-count": str(count)})).id for count in range(2)]
    expect.equal("the second id", ids[1], ids[0])
    expect.equal("number of turns", len(probe.own.turns), 1)


# ---- count_tokens


async def counted(probe: Probe, **fields: Any) -> int:
    asked = {"model": probe.model, "messages": ASK, **fields}
    return int((await probe.anthropic.messages.count_tokens(**asked)).input_tokens)


@case("messages", "count_tokens", "the count is what the message then uses")
async def count(probe: Probe) -> None:
    expect.equal("input_tokens", await counted(probe), num_input_tokens((await probe.message()).usage))


@case("messages", "count_tokens", "system, tools and history are counted")
async def count_all(probe: Probe) -> None:
    fields: dict[str, Any] = {
        "system": "Be brief.",
        "tools": MESSAGE_TOOLS,
        "messages": [*ASK, {"role": "assistant", "content": "Red."}, *ASK],
    }
    used = num_input_tokens((await probe.message(**fields)).usage)
    expect.equal("input_tokens", await counted(probe, **fields), used)


@case("messages", "count_tokens", "counting samples nothing and leaves no turn", ours=RECORD)
async def count_only(probe: Probe) -> None:
    await counted(probe)
    expect.equal("calls and turns", (len(probe.own.calls), len(probe.own.turns)), (0, 0))


@case("messages", "count_tokens", "a count of no messages is refused")
async def count_nothing(probe: Probe) -> None:
    await probe.refused(counted(probe, messages=[]))
