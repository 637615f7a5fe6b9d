"""Anthropic Messages: blocks, the order of events, thinking, counting tokens, errors of that protocol."""

from __future__ import annotations

from typing import Any

from ludus.checks.conformance import expect
from ludus.checks.conformance.asks import ASK, POINT, THOUGHT, check_error, check_point, message
from ludus.checks.conformance.case import EXTENSION, RECORD, SCRIPT, case
from ludus.checks.conformance.cases.laws import helped
from ludus.checks.conformance.expect import TEXT, one_of
from ludus.checks.conformance.probe import Probe
from ludus.checks.conformance.replies import num_input_tokens
from ludus.checks.conformance.words import MESSAGES
from ludus.errors import BackendError

ENDS = one_of("end_turn", "max_tokens")


@case("messages", "text")
async def parts(probe: Probe) -> None:
    """A message has every part that the protocol names."""
    answer = await probe.answer()
    expect.parts(answer, type="message", role="assistant", id=TEXT, model=TEXT, stop_reason=ENDS, stop_sequence=None)
    (block,) = answer.content
    expect.parts(block, type="text", text=TEXT)


# ---- streaming


@case("messages", "streaming")
async def start(probe: Probe) -> None:
    """message_start holds an empty message with its id and the tokens that were read."""
    started = (await probe.events())[0].message
    expect.parts(started, content=[], stop_reason=None, id=TEXT)
    expect.equal("input_tokens", num_input_tokens(started.usage), expect.over(0))


@case("messages", "streaming")
async def indices(probe: Probe) -> None:
    """Blocks are numbered from 0, and each delta is inside its own block."""
    open_block, opened = None, []
    for event in await probe.events():
        if event.type == "content_block_start":
            expect.equal("the open block", open_block, None)
            open_block = event.index
            opened.append(event.index)
        elif event.type in ("content_block_delta", "content_block_stop"):
            expect.equal(f"index of {event.type}", event.index, open_block)
            open_block = None if event.type == "content_block_stop" else open_block
    expect.equal("indices of the blocks", opened, [*range(len(opened))])


# ---- stop, errors, JSON


@case("messages", "stop", ours=SCRIPT)
async def stop(probe: Probe) -> None:
    """An answer ends before its stop sequence."""
    reply = await probe.both("red green blue white", stop_sequences=["blue w", " white"])
    expect.parts(reply, text="red green ", ended="stop_sequence")
    expect.parts(reply.raw, stop_sequence="blue w")


@case("messages", "errors", ours=SCRIPT)
async def backend(probe: Probe) -> None:
    """A failing engine is a 500 api_error that may be sent again."""
    probe.script(BackendError("out of memory"))
    answer = await probe.post()
    check_error(answer, 500, of_messages=True, type="api_error")
    expect.equal("x-should-retry", answer.headers.get("x-should-retry"), "true")


@case("messages", "structured output", ours=EXTENSION)
async def schema(probe: Probe) -> None:
    """An output format: the text is JSON that fits the schema."""
    form = {"format": {"type": "json_schema", "schema": POINT}}
    check_point((await probe.ask(output_config=form)).text)


# ---- thinking


@case("messages", "reasoning", ours=SCRIPT)
async def thinking_streamed(probe: Probe) -> None:
    """Streamed thinking has its own deltas and a signature at its end."""
    deltas = [event for event in await probe.events(THOUGHT) if event.type == "content_block_delta"]
    *kinds, last = [event.delta.type for event in deltas if event.index == 0]
    expect.equal("deltas of block 0", ({*kinds}, last), ({"thinking_delta"}, "signature_delta"))
    expect.parts(await helped(probe, THOUGHT), reasoning="Paris is in France.")


@case("messages", "reasoning", ours=RECORD)
async def disabled(probe: Probe) -> None:
    """Thinking that is disabled is closed where the template can."""
    await probe.ask(thinking={"type": "disabled"})
    expect.equal("the prompt", probe.local.prompt_text(), expect.ending("<think>\n\n</think>\n\n"))


# ---- count_tokens


async def counted(probe: Probe, **fields: Any) -> int:
    asked = {"model": probe.model, "messages": ASK, **fields}
    return int((await probe.sdk.count_tokens(**asked)).input_tokens)


@case("messages", "count_tokens")
async def count(probe: Probe) -> None:
    """The count is what the message then uses."""
    expect.equal("input_tokens", await counted(probe), (await probe.ask()).num_prompt)


@case("messages", "count_tokens")
async def count_all(probe: Probe) -> None:
    """System, tools and history are counted."""
    history = [*ASK, message("assistant", "Red."), *ASK]
    fields = {"system": "Be brief.", "tools": MESSAGES.tools, "messages": history}
    expect.equal("input_tokens", await counted(probe, **fields), (await probe.ask(**fields)).num_prompt)


@case("messages", "count_tokens", ours=RECORD)
async def count_only(probe: Probe) -> None:
    """Counting samples nothing and leaves no turn."""
    await counted(probe)
    expect.equal("calls and turns", (len(probe.local.calls), len(probe.local.turns)), (0, 0))


@case("messages", "count_tokens")
async def count_nothing(probe: Probe) -> None:
    """A count of no messages is refused."""
    await probe.refused(counted(probe, messages=[]))
