"""Chat Completions as they come: the order and shape of the chunks, true streaming, clients that leave."""

from __future__ import annotations

import asyncio
import json

from ludus.checks.conformance import expect
from ludus.checks.conformance.case import RECORD, SCRIPT, SESSIONS, case
from ludus.checks.conformance.probe import ASK, Probe
from ludus.checks.conformance.replies import of_choice, of_chunks
from ludus.checks.conformance.sse import DONE

PATH = "/chat/completions"


@case("chat", "streaming")
async def role_first(probe: Probe) -> None:
    """The first chunk tells the role, before any text."""
    first = (await probe.chat_chunks())[0].choices[0].delta
    expect.equal("role of the first chunk", first.role, "assistant")
    expect.that("text of the first chunk", not first.content, "none", first.content)


@case("chat", "streaming")
async def one_head(probe: Probe) -> None:
    """All chunks have one id, one time, one model and the object of a chunk."""
    chunks = await probe.chat_chunks()
    heads = {(chunk.id, chunk.created, chunk.model, chunk.object) for chunk in chunks}
    expect.equal("number of different heads", len(heads), 1)
    expect.equal("object", chunks[0].object, "chat.completion.chunk")
    expect.text("id", chunks[0].id)


@case("chat", "streaming")
async def one_end(probe: Probe) -> None:
    """finish_reason comes once, with the last choice."""
    reasons = [choice.finish_reason for chunk in await probe.chat_chunks() for choice in chunk.choices]
    expect.one_of("the last finish_reason", reasons[-1], ("stop", "length"))
    expect.equal("finish reasons before the last", [reason for reason in reasons[:-1] if reason], [])


@case("chat", "streaming")
async def no_usage_chunk(probe: Probe) -> None:
    """Not asked for, usage is in no chunk."""
    chunks = await probe.chat_chunks()
    expect.equal("chunks with usage", [chunk for chunk in chunks if chunk.usage is not None], [])
    expect.that("choices of every chunk", all(chunk.choices for chunk in chunks), "at least one", "none in some")


@case("chat", "streaming")
async def helper(probe: Probe) -> None:
    """The SDK's stream helper puts together the completion."""
    # The helper refuses answers that a limit cut, so this one has to end by itself.
    fields = probe.chat_fields(seed=5, stop=[" "])
    async with probe.openai.chat.completions.stream(**fields) as stream:
        final = await stream.get_final_completion()
    whole = await probe.openai.chat.completions.create(**fields)
    expect.equal("the completion", of_choice(final.choices[0]), of_choice(whole.choices[0]))


@case("chat", "streaming")
async def not_streamed(probe: Probe) -> None:
    """stream=false is an answer at once."""
    answer = await probe.post(PATH, probe.chat_fields(stream=False))
    expect.contains("content-type", answer.headers.get("content-type"), "application/json")
    expect.equal("object", answer.json()["object"], "chat.completion")


@case("chat", "streaming", ours=SCRIPT)
async def delta_by_delta(probe: Probe) -> None:
    """Every token's text is a delta of its own, none waits for the next."""
    probe.script("red green blue white black")
    deltas = [chunk.choices[0].delta.content for chunk in await probe.chat_chunks() if chunk.choices[0].delta.content]
    # All tokens but the one that ends the answer have text here.
    expect.equal("number of deltas", len(deltas), len(probe.local.calls[0].token_ids) - 1)


@case("chat", "streaming", ours=RECORD)
async def client_leaves(probe: Probe) -> None:
    """A client that leaves stops the engine, and what was sampled is a turn."""
    probe.script("red green blue white black")
    token_gate = probe.local.hold_tokens(3)
    async with probe.open_stream(PATH, probe.chat_fields()) as lines:
        async for line in lines:
            if '"content"' in line:
                break
    was_aborted = await asyncio.to_thread(token_gate.was_aborted.wait, 5.0)
    expect.that("the engine", was_aborted, "stopped within 5 s", "still running")
    await probe.local.session.aclose("the client left")
    (turn,) = probe.local.turns
    expect.equal("tokens of the turn", list(turn.sampled.token_ids), probe.local.calls[0].token_ids)
    expect.equal("stop reason of the turn", turn.sampled.stop_reason, "abort")


@case("chat", "streaming", ours=SCRIPT)
async def keep_alive(probe: Probe) -> None:
    """A silent stream is kept alive by comments that clients skip."""
    probe.script("red")
    token_gate = probe.local.hold_tokens(0)
    comments, told = 0, []
    async with probe.open_stream(PATH, probe.chat_fields()) as lines:
        async for line in lines:
            if line.startswith(":"):
                comments += 1
                token_gate.release()
            told += [line] if line.startswith("data: ") else []
    expect.that("comments", comments > 0, "at least one", comments)
    expect.equal("the last event", told[-1], f"data: {DONE}")


@case("chat", "streaming", ours=SESSIONS)
async def broken_stream(probe: Probe) -> None:
    """A stream that breaks ends with an error event in the protocol's shape."""
    probe.script("red green blue")
    probe.local.hold_tokens(2)
    told = []
    async with probe.open_stream(PATH, probe.chat_fields()) as lines:
        async for line in lines:
            if '"content"' in line:
                probe.local.session.close("the case ends it")
            told += [line.removeprefix("data: ")] if line.startswith("data: ") else []
    error = json.loads(told[-2]).get("error", {})
    expect.equal("code of the last event but one", error.get("code"), "session_closed")
    expect.equal("fields of the error", sorted(error), ["code", "message", "param", "type"])
    expect.equal("the last event", told[-1], DONE)


@case("chat", "streaming", ours=RECORD)
async def durable_first(probe: Probe) -> None:
    """The turn is in the record before the end of its stream is told."""
    async with probe.open_stream(PATH, probe.chat_fields()) as lines:
        async for line in lines:
            if '"finish_reason":"stop"' in line:
                expect.equal("turns in the record", len(probe.local.turns), 1)
                return
    raise expect.ExpectationError("the stream", "an end with finish_reason stop", "none")


@case("chat", "streaming", ours=SCRIPT)
async def many_at_once(probe: Probe) -> None:
    """A hundred streams at once stay apart."""
    others = [probe.another() for _ in range(20)]
    for number, other in enumerate(others):
        other.script(*[f"answer {number}"] * 5)
    replies = await asyncio.gather(*(other.chat_chunks(messages=ASK) for other in others * 5))
    texts = [of_chunks(chunks).text for chunks in replies]
    expect.equal("texts", texts, [f"answer {number}" for number in range(20)] * 5)
