"""Chat Completions in another form than plain text: JSON by a schema, and thinking."""

from __future__ import annotations

from typing import Any

from ludus.checks.conformance import expect
from ludus.checks.conformance.case import RECORD, SCRIPT, case
from ludus.checks.conformance.cases.asks import POINT, TIME_CALL
from ludus.checks.conformance.cases.chat_fields import text_of
from ludus.checks.conformance.cases.chat_tools import TOOLS
from ludus.checks.conformance.probe import ASK, Probe
from ludus.checks.conformance.replies import of_choice, of_chunks

THOUGHT = "<think>\nParis is in France.\n</think>\n\nIt rains."


# ---- structured output


def json_schema(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "point", "schema": schema, "strict": True}}


def check_point(text: str) -> None:
    """The schema `POINT`, by hand."""
    value = expect.json_object("the text", text)
    expect.equal("fields", sorted(value), ["origin", "tags", "unit", "x"])
    expect.that("x", type(value["x"]) is int, "an integer", value["x"])
    expect.one_of("unit", value["unit"], ("m", "km"))
    tags = value["tags"]
    is_list = isinstance(tags, list) and 1 <= len(tags) <= 2 and all(isinstance(tag, str) for tag in tags)
    expect.that("tags", is_list, "one or two strings", tags)
    expect.that("origin", isinstance(value["origin"].get("known"), bool), "an object with a boolean", value["origin"])


def check_json_object(text: str, *, is_cut: bool) -> None:
    """The text of a JSON object; of one that a limit cut, the beginning: what stands in it is the model's affair."""
    if is_cut:
        expect.that("the text, which was cut", text.lstrip().startswith("{"), "the beginning of a JSON object", text)
    else:
        expect.json_object("the text", text)


@case("chat", "structured output", "json_object: the text is a JSON object")
async def json_object(probe: Probe) -> None:
    reply = of_choice((await probe.chat(response_format={"type": "json_object"}, max_tokens=200)).choices[0])
    check_json_object(reply.text, is_cut=reply.ended == "length")


@case("chat", "structured output", "json_schema: the text is JSON that fits the schema")
async def schema(probe: Probe) -> None:
    check_point(await text_of(probe, response_format=json_schema(POINT), max_tokens=200))


@case("chat", "structured output", "json_schema streamed: the deltas add up to JSON that fits")
async def schema_streamed(probe: Probe) -> None:
    chunks = await probe.chat_chunks(response_format=json_schema(POINT), max_tokens=200)
    check_point(of_chunks(chunks).text)


@case("chat", "structured output", "the SDK's parse hands out the parsed object")
async def parsed(probe: Probe) -> None:
    import pydantic

    class Colour(pydantic.BaseModel):
        red: int
        name: str

    fields = probe.chat_fields(max_tokens=200)
    answer = await probe.openai.chat.completions.parse(**fields, response_format=Colour)
    value = answer.choices[0].message.parsed
    expect.that("the parsed object", isinstance(value, Colour), "a Colour", value)


@case("chat", "structured output", "a constrained answer is drawn under a grammar, a free one is not", ours=RECORD)
async def grammars(probe: Probe) -> None:
    await probe.chat(response_format=json_schema(POINT))
    await probe.chat(response_format={"type": "text"})
    held = [heard.call.sampling.grammar is not None for heard in probe.own.calls]
    expect.equal("calls with a grammar", held, [True, False])


@case("chat", "structured output", "the type text asks for nothing")
async def plain_format(probe: Probe) -> None:
    expect.text("content", await text_of(probe, response_format={"type": "text"}))


# ---- reasoning


@case("chat", "reasoning", "thinking stands apart from the text", ours=SCRIPT)
async def thinking(probe: Probe) -> None:
    probe.script(THOUGHT)
    reply = of_choice((await probe.chat()).choices[0])
    expect.equal("reasoning", reply.reasoning.strip(), "Paris is in France.")
    expect.equal("text", reply.text, "It rains.")


@case("chat", "reasoning", "streamed thinking comes before the text and adds up to the same", ours=SCRIPT)
async def thinking_streamed(probe: Probe) -> None:
    probe.script(THOUGHT, THOUGHT)
    whole = of_choice((await probe.chat()).choices[0])
    chunks = await probe.chat_chunks()
    expect.equal("the streamed reply", of_chunks(chunks), whole)
    kinds = ["text" if chunk.choices[0].delta.content else "thinking" for chunk in chunks[1:-1]]
    expect.equal("order of the deltas", kinds, sorted(kinds, reverse=True))


@case("chat", "reasoning", "a call inside thinking is no call", ours=SCRIPT)
async def call_in_thinking(probe: Probe) -> None:
    probe.script(f"<think>\nPerhaps {TIME_CALL}?\n</think>\n\nNo.")
    reply = of_choice((await probe.chat(**TOOLS)).choices[0])
    expect.equal("calls", reply.calls, ())
    expect.equal("text", reply.text, "No.")
    expect.contains("reasoning", reply.reasoning, "get_time")


@case("chat", "reasoning", "a call after thinking is a call", ours=SCRIPT)
async def call_after_thinking(probe: Probe) -> None:
    probe.script(f"<think>\nI ask.\n</think>\n\n{TIME_CALL}")
    reply = of_choice((await probe.chat(**TOOLS)).choices[0])
    expect.equal("names", [call.name for call in reply.calls], ["get_time"])
    expect.equal("how it ended", reply.ended, "tool_calls")


@case("chat", "reasoning", "thinking that is sent back leaves the tokens as they were sampled", ours=RECORD)
async def thinking_sent_back(probe: Probe) -> None:
    probe.script(THOUGHT)
    reply = (await probe.chat()).choices[0].message.model_dump(exclude_none=True)
    await probe.chat(messages=[*ASK, reply, {"role": "user", "content": "And in Rome?"}])
    first, second = probe.own.turns
    expect.equal("the turn that the second extends", (second.prefix, second.fork), (first.id, None))


@case("chat", "reasoning", "a model that does not think has no thinking in its answer", ours=SCRIPT)
async def no_thinking(probe: Probe) -> None:
    probe.script("It rains.")
    message = (await probe.chat()).choices[0].message
    expect.equal("reasoning_content", (message.model_extra or {}).get("reasoning_content"), None)


@case("chat", "reasoning", "reasoning_effort is taken")
async def effort(probe: Probe) -> None:
    answer = await probe.chat(reasoning_effort="low")
    expect.that("usage", answer.usage.completion_tokens > 0, "an answer", answer.usage)


@case("chat", "reasoning", "reasoning_effort none closes the thinking where the template can", ours=RECORD)
async def no_effort(probe: Probe) -> None:
    await probe.chat(reasoning_effort="none")
    prompt = probe.own.prompt_text()
    expect.that("end of the prompt", prompt.endswith("<think>\n\n</think>\n\n"), "closed thinking", prompt[-60:])


@case("chat", "reasoning", "chat_template_kwargs reach the template", ours=RECORD)
async def template_kwargs(probe: Probe) -> None:
    await probe.chat(extra_body={"chat_template_kwargs": {"enable_thinking": False}})
    prompt = probe.own.prompt_text()
    expect.that("end of the prompt", prompt.endswith("<think>\n\n</think>\n\n"), "closed thinking", prompt[-60:])
