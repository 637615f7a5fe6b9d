"""Chat Completions as they come: the order and shape of the chunks, true streaming, clients that leave."""

from __future__ import annotations

import asyncio
import json

from ludus.checks.conformance import expect
from ludus.checks.conformance.asks import COLOURS
from ludus.checks.conformance.case import RECORD, SCRIPT, SESSIONS, case
from ludus.checks.conformance.expect import EMPTY, FULL, TEXT, containing, one_of
from ludus.checks.conformance.probe import Probe
from ludus.checks.conformance.sse import DONE


@case("chat", "streaming")
async def role_first(probe: Probe) -> None:
    """The first chunk has the role, before any text."""
    expect.parts((await probe.events())[0].choices[0].delta, role="assistant", content=EMPTY)


@case("chat", "streaming")
async def one_head(probe: Probe) -> None:
    """All chunks have one id, one time, one model and the object of a chunk."""
    chunks = await probe.events()
    expect.parts(chunks[0], id=TEXT, object="chat.completion.chunk")
    heads = {(chunk.id, chunk.created, chunk.model, chunk.object) for chunk in chunks}
    expect.equal("number of different heads", len(heads), 1)


@case("chat", "streaming")
async def one_end(probe: Probe) -> None:
    """finish_reason comes once, with the last choice."""
    *reasons, last = [choice.finish_reason for chunk in await probe.events() for choice in chunk.choices]
    expect.equal("the last finish_reason", last, one_of("stop", "length"))
    expect.equal("finish reasons before the last", [reason for reason in reasons if reason], [])


@case("chat", "streaming")
async def no_usage_chunk(probe: Probe) -> None:
    """Not asked for, usage is in no chunk."""
    for chunk in await probe.events():
        expect.parts(chunk, usage=None, choices=FULL)


@case("chat", "streaming")
async def not_streamed(probe: Probe) -> None:
    """stream=false is an answer at once."""
    answer = await probe.post(stream=False)
    expect.equal("content-type", answer.headers.get("content-type"), containing("application/json"))
    expect.parts(answer.json(), object="chat.completion")


@case("chat", "streaming", ours=SCRIPT)
async def delta_by_delta(probe: Probe) -> None:
    """Every token's text is a delta of its own, none waits for the next."""
    deltas = [chunk for chunk in await probe.events(COLOURS) if chunk.choices[0].delta.content]
    # All tokens but the one that ends the answer have text here.
    expect.equal("number of deltas", len(deltas), len(probe.local.calls[0].token_ids) - 1)


@case("chat", "streaming", ours=RECORD)
async def client_leaves(probe: Probe) -> None:
    """A client that leaves stops the engine, and what was sampled is a turn."""
    token_gate = probe.local.hold_tokens(3)
    async with probe.lines(COLOURS) as lines:
        async for line in lines:
            if '"content"' in line:
                break
    was_aborted = await asyncio.to_thread(token_gate.was_aborted.wait, 5.0)
    expect.that("the engine", was_aborted, "stopped within 5 s", "still running")
    await probe.local.session.aclose("the client left")
    (turn,) = probe.local.turns
    expect.parts(turn.sampled, token_ids=tuple(probe.local.calls[0].token_ids), stop_reason="abort")


@case("chat", "streaming", ours=SCRIPT)
async def keep_alive(probe: Probe) -> None:
    """A silent stream is kept alive by comments that clients skip."""
    token_gate = probe.local.hold_tokens(0)
    async with probe.lines("red") as lines:
        async for line in lines:
            if line.startswith(":"):  # without one the stream stays silent for ever
                token_gate.release()
    expect.equal("the last event", line, f"data: {DONE}")


@case("chat", "streaming", ours=SESSIONS)
async def broken_stream(probe: Probe) -> None:
    """A stream that breaks ends with an error event in the protocol's shape."""
    probe.local.hold_tokens(2)
    data = []
    async with probe.lines("red green blue") as lines:
        async for line in lines:
            if '"content"' in line:
                probe.local.session.close("the case ends it")
            data.append(line.removeprefix("data: "))
    error = json.loads(data[-2]).get("error", {})
    expect.parts(error, code="session_closed")
    expect.equal("fields of the error", sorted(error), ["code", "message", "param", "type"])
    expect.equal("the last event", data[-1], DONE)


@case("chat", "streaming", ours=RECORD)
async def durable_first(probe: Probe) -> None:
    """The turn is in the record before its stream ends."""
    async with probe.lines() as lines:
        async for line in lines:
            if '"finish_reason":"stop"' in line:
                expect.equal("turns in the record", len(probe.local.turns), 1)
                return
    raise expect.ExpectationError("the stream", "an end with finish_reason stop", "none")


@case("chat", "streaming", ours=SCRIPT)
async def many_at_once(probe: Probe) -> None:
    """A hundred streams at once stay apart."""
    others = [probe.another() for _ in range(20)]
    texts = [f"answer {number}" for number in range(20)] * 5
    replies = await asyncio.gather(*(one.stream(text) for one, text in zip(others * 5, texts, strict=True)))
    expect.equal("texts", [reply.text for reply in replies], texts)
