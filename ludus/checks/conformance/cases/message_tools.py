"""Anthropic Messages with tools: calls and results as blocks, calls that are forced, JSON, thinking."""

from __future__ import annotations

import json
from typing import Any

from ludus.checks.conformance import expect
from ludus.checks.conformance.case import EXTENSION, RECORD, SCRIPT, case
from ludus.checks.conformance.cases.asks import (
    MESSAGE_TOOLS,
    POINT,
    QUESTION,
    THOUGHT,
    TIME_ARGUMENTS,
    TIME_CALL,
    WEATHER_ARGUMENTS,
    WEATHER_CALL,
    check_point,
)
from ludus.checks.conformance.probe import Probe
from ludus.checks.conformance.replies import of_message

PATH = "/messages"
TOOLS: dict[str, Any] = {"messages": [{"role": "user", "content": QUESTION}], "tools": MESSAGE_TOOLS}
ENDS = ("end_turn", "max_tokens")


# ---- tools


@case("messages", "tools", ours=SCRIPT)
async def call(probe: Probe) -> None:
    """A call is a tool_use block: id, name, input as an object; its end is tool_use."""
    probe.script(TIME_CALL)
    message = await probe.message(**TOOLS)
    (block,) = message.content
    expect.equal("type", block.type, "tool_use")
    expect.text("id", block.id)
    expect.equal("name", block.name, "get_time")
    expect.equal("input", block.input, json.loads(TIME_ARGUMENTS))
    expect.equal("stop_reason", message.stop_reason, "tool_use")


@case("messages", "tools", ours=SCRIPT)
async def three_blocks(probe: Probe) -> None:
    """Text and two calls are three blocks, in the order in which they were said."""
    said = f"I look it up.\n{WEATHER_CALL}\n{TIME_CALL}"
    probe.script(said, said)
    message = await probe.message(**TOOLS)
    expect.equal("types", [block.type for block in message.content], ["text", "tool_use", "tool_use"])
    expect.equal("number of different ids", len({block.id for block in message.content[1:]}), 2)
    events = await probe.message_events(**TOOLS)
    opened = [(e.index, e.content_block.type) for e in events if e.type == "content_block_start"]
    expect.equal("blocks opened", opened, [(0, "text"), (1, "tool_use"), (2, "tool_use")])


@case("messages", "tools", ours=SCRIPT)
async def streamed_call(probe: Probe) -> None:
    """A streamed call opens with an empty input, and its pieces are the JSON as sampled."""
    probe.script(WEATHER_CALL)
    events = await probe.message_events(**TOOLS)
    (opened,) = [event.content_block for event in events if event.type == "content_block_start"]
    expect.equal("input at the start", opened.input, {})
    deltas = [event.delta for event in events if event.type == "content_block_delta"]
    expect.equal("types of the deltas", {delta.type for delta in deltas}, {"input_json_delta"})
    expect.equal("the pieces together", "".join(delta.partial_json for delta in deltas), WEATHER_ARGUMENTS)


@case("messages", "tools", ours=SCRIPT)
async def helper_calls(probe: Probe) -> None:
    """The SDK's stream helper puts together the calls."""
    probe.script(f"{WEATHER_CALL}\n{TIME_CALL}", f"{WEATHER_CALL}\n{TIME_CALL}")
    async with probe.anthropic.messages.stream(**probe.message_arguments(**TOOLS)) as stream:
        final = of_message(await stream.get_final_message())
    whole = of_message(await probe.message(**TOOLS))
    expect.equal("calls", [(c.name, c.arguments) for c in final.calls], [(c.name, c.arguments) for c in whole.calls])
    expect.equal("how it ended", final.ended, "tool_use")


def results(*blocks: dict[str, Any]) -> list[dict[str, Any]]:
    used = [
        {"type": "tool_use", "id": block["tool_use_id"], "name": "get_time", "input": {"city": "Paris"}}
        for block in blocks
    ]
    return [*TOOLS["messages"], {"role": "assistant", "content": used}, {"role": "user", "content": list(blocks)}]


@case("messages", "tools")
async def result_shapes(probe: Probe) -> None:
    """Results are taken back: as text, as blocks, as an error, beside text."""
    text = {"type": "tool_result", "tool_use_id": "toolu_a", "content": "noon"}
    in_blocks = {**text, "tool_use_id": "toolu_b", "content": [{"type": "text", "text": "noon"}]}
    failed = {**text, "tool_use_id": "toolu_c", "is_error": True}
    for messages in (results(text), results(text, in_blocks), results(failed)):
        message = await probe.message(messages=messages, tools=MESSAGE_TOOLS)
        expect.that("output_tokens", message.usage.output_tokens > 0, "an answer", message.usage)


@case("messages", "structured output", ours=EXTENSION)
async def schema(probe: Probe) -> None:
    """An output format: the text is JSON that fits the schema."""
    form = {"format": {"type": "json_schema", "schema": POINT}}
    check_point(of_message(await probe.message(output_config=form)).text)


# ---- thinking


@case("messages", "reasoning", ours=SCRIPT)
async def thinking(probe: Probe) -> None:
    """Thinking is a signed block of its own before the text."""
    probe.script(THOUGHT)
    message = await probe.message()
    expect.equal("types", [block.type for block in message.content], ["thinking", "text"])
    expect.equal("thinking", message.content[0].thinking.strip(), "Paris is in France.")
    expect.text("signature", message.content[0].signature)
    expect.equal("text", message.content[1].text, "It rains.")


@case("messages", "reasoning", ours=SCRIPT)
async def thinking_streamed(probe: Probe) -> None:
    """Streamed thinking has its own deltas and a signature at its end."""
    probe.script(THOUGHT, THOUGHT)
    deltas = [event for event in await probe.message_events() if event.type == "content_block_delta"]
    kinds = [event.delta.type for event in deltas if event.index == 0]
    expect.equal("types in block 0", sorted(set(kinds)), ["signature_delta", "thinking_delta"])
    expect.equal("the last delta of block 0", kinds[-1], "signature_delta")
    async with probe.anthropic.messages.stream(**probe.message_arguments()) as stream:
        final = of_message(await stream.get_final_message())
    expect.equal("thinking", final.reasoning.strip(), "Paris is in France.")


@case("messages", "reasoning", ours=RECORD)
async def disabled(probe: Probe) -> None:
    """Thinking that is disabled is closed where the template can."""
    await probe.message(thinking={"type": "disabled"})
    prompt = probe.local.prompt_text()
    expect.that("end of the prompt", prompt.endswith("<think>\n\n</think>\n\n"), "closed thinking", prompt[-60:])


@case("messages", "reasoning")
async def budget(probe: Probe) -> None:
    """Thinking with a budget is taken."""
    # The protocol wants temperature 1 and room beyond the budget; the stop sequence keeps a real model from using it.
    fields: dict[str, Any] = {"temperature": 1, "max_tokens": 1100, "stop_sequences": ["e"]}
    fields["thinking"] = {"type": "enabled", "budget_tokens": 1024}
    message = await probe.message(**fields)
    expect.that("output_tokens", message.usage.output_tokens > 0, "an answer", message.usage)
