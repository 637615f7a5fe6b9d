"""Anthropic Messages: blocks, the order of events, limits, counting tokens, errors of that protocol."""

from __future__ import annotations

from typing import Any

from ludus.checks.conformance import expect
from ludus.checks.conformance.case import RECORD, SCRIPT, SESSIONS, case
from ludus.checks.conformance.cases.asks import (
    MESSAGE_TOOLS,
    check_error,
)
from ludus.checks.conformance.probe import ASK, Probe
from ludus.checks.conformance.replies import num_input_tokens, of_message
from ludus.errors import BackendError

PATH = "/messages"
ENDS = ("end_turn", "max_tokens")


# ---- text


@case("messages", "text")
async def parts(probe: Probe) -> None:
    """A message has every part that the protocol names."""
    message = await probe.message()
    expect.equal("type", message.type, "message")
    expect.equal("role", message.role, "assistant")
    expect.text("id", message.id)
    expect.text("model", message.model)
    expect.one_of("stop_reason", message.stop_reason, ENDS)
    expect.equal("stop_sequence", message.stop_sequence, None)
    expect.equal("types of the blocks", [block.type for block in message.content], ["text"])
    expect.text("text", message.content[0].text)


# ---- streaming


async def kinds_of(probe: Probe, **fields: Any) -> list[str]:
    return [event.type for event in await probe.message_events(**fields) if event.type != "ping"]


@case("messages", "streaming")
async def order(probe: Probe) -> None:
    """The stream is message_start, blocks, message_delta, message_stop."""
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


@case("messages", "streaming")
async def start(probe: Probe) -> None:
    """message_start holds an empty message with its id and the tokens that were read."""
    message = (await probe.message_events())[0].message
    expect.equal("content", list(message.content), [])
    expect.equal("stop_reason", message.stop_reason, None)
    expect.text("id", message.id)
    expect.that("input_tokens", num_input_tokens(message.usage) > 0, "more than 0", message.usage)


@case("messages", "streaming")
async def helper(probe: Probe) -> None:
    """The SDK's stream helper puts together the message that comes at once."""
    async with probe.anthropic.messages.stream(**probe.message_arguments()) as stream:
        final = await stream.get_final_message()
    whole = await probe.message()
    expect.equal("the message", of_message(final), of_message(whole))
    expect.equal("output_tokens", final.usage.output_tokens, whole.usage.output_tokens)


@case("messages", "streaming")
async def indices(probe: Probe) -> None:
    """Blocks are numbered from 0, and each delta is inside its own block."""
    open_block, opened = None, []
    for event in await probe.message_events():
        if event.type == "content_block_start":
            expect.equal("the open block", open_block, None)
            open_block = event.index
            opened.append(event.index)
        elif event.type in ("content_block_delta", "content_block_stop"):
            expect.equal(f"index of {event.type}", event.index, open_block)
            open_block = None if event.type == "content_block_stop" else open_block
    expect.rising("indices of the blocks", opened)


# ---- stop, limits, sampling


@case("messages", "stop", ours=SCRIPT)
async def stop(probe: Probe) -> None:
    """An answer ends before its stop sequence."""
    probe.script("red green blue white")
    message = await probe.message(stop_sequences=["blue w", " white"])
    expect.equal("text", of_message(message).text, "red green ")
    expect.equal("stop_reason", message.stop_reason, "stop_sequence")
    expect.equal("stop_sequence", message.stop_sequence, "blue w")


# ---- errors, headers, keys


@case("messages", "errors")
async def sdk_error(probe: Probe) -> None:
    """The SDK raises BadRequestError."""
    told = await probe.refused(probe.message(messages=[{"role": "king", "content": "Hello."}]))
    expect.equal("exception", told.kind, "BadRequestError")


@case("messages", "errors", ours=SCRIPT)
async def backend(probe: Probe) -> None:
    """A failing engine is a 500 api_error that may be sent again."""
    probe.local.script(BackendError("out of memory"))
    answer = await probe.post(PATH, probe.message_fields())
    expect.equal("type of the error", check_error(answer, 500, of_messages=True)["type"], "api_error")
    expect.equal("x-should-retry", answer.headers.get("x-should-retry"), "true")


@case("messages", "headers")
async def harmless(probe: Probe) -> None:
    """Beta and version headers, cache marks and metadata are taken."""
    marked = [{"type": "text", "text": "Name a colour.", "cache_control": {"type": "ephemeral"}}]
    message = await probe.message(
        messages=[{"role": "user", "content": marked}],
        metadata={"user_id": "me"},
        extra_headers={"anthropic-beta": "prompt-caching-2024-07-31,token-efficient-tools-2025-02-19"},
    )
    expect.one_of("stop_reason", message.stop_reason, ENDS)


@case("messages", "keys", ours=SESSIONS)
async def key(probe: Probe) -> None:
    """The SDK's key in x-api-key names the session."""
    _, client = probe.with_key(probe.local.secret, root=probe.local.gateway)
    await client.messages.create(**probe.message_arguments())
    expect.equal("number of turns", len(probe.local.turns), 1)


@case("messages", "keys", ours=SESSIONS)
async def wrong_key(probe: Probe) -> None:
    """A key that names no session is a 401 authentication_error."""
    _, client = probe.with_key("sk-ant-wrong-0123456789", root=probe.local.gateway)
    told = await probe.refused(client.messages.create(**probe.message_arguments()), status=401)
    expect.equal("exception", told.kind, "AuthenticationError")
    expect.equal("type of the error", told.error.get("type"), "authentication_error")


# ---- count_tokens


async def counted(probe: Probe, **fields: Any) -> int:
    asked = {"model": probe.model, "messages": ASK, **fields}
    return int((await probe.anthropic.messages.count_tokens(**asked)).input_tokens)


@case("messages", "count_tokens")
async def count(probe: Probe) -> None:
    """The count is what the message then uses."""
    expect.equal("input_tokens", await counted(probe), num_input_tokens((await probe.message()).usage))


@case("messages", "count_tokens")
async def count_all(probe: Probe) -> None:
    """System, tools and history are counted."""
    fields: dict[str, Any] = {
        "system": "Be brief.",
        "tools": MESSAGE_TOOLS,
        "messages": [*ASK, {"role": "assistant", "content": "Red."}, *ASK],
    }
    used = num_input_tokens((await probe.message(**fields)).usage)
    expect.equal("input_tokens", await counted(probe, **fields), used)


@case("messages", "count_tokens", ours=RECORD)
async def count_only(probe: Probe) -> None:
    """counting samples nothing and leaves no turn."""
    await counted(probe)
    expect.equal("calls and turns", (len(probe.local.calls), len(probe.local.turns)), (0, 0))


@case("messages", "count_tokens")
async def count_nothing(probe: Probe) -> None:
    """A count of no messages is refused."""
    await probe.refused(counted(probe, messages=[]))
