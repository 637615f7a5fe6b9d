"""Chat Completions in another form than plain text: JSON by a schema, and thinking."""

from __future__ import annotations

from ludus.checks.conformance import expect
from ludus.checks.conformance.case import RECORD, SCRIPT, case
from ludus.checks.conformance.cases.asks import POINT, THOUGHT, TIME_CALL, chat_schema, check_json_object, check_point
from ludus.checks.conformance.cases.chat_fields import text_of
from ludus.checks.conformance.cases.chat_tools import TOOLS
from ludus.checks.conformance.probe import Probe
from ludus.checks.conformance.replies import of_choice, of_chunks

# ---- structured output


@case("chat", "structured output")
async def json_object(probe: Probe) -> None:
    """json_object: the text is a JSON object."""
    reply = of_choice((await probe.chat(response_format={"type": "json_object"}, max_tokens=200)).choices[0])
    check_json_object(reply.text, is_cut=reply.ended == "length")


@case("chat", "structured output")
async def schema_streamed(probe: Probe) -> None:
    """json_schema streamed: the deltas add up to JSON that fits."""
    chunks = await probe.chat_chunks(response_format=chat_schema(POINT), max_tokens=200)
    check_point(of_chunks(chunks).text)


@case("chat", "structured output")
async def parsed(probe: Probe) -> None:
    """The SDK's parse returns the parsed object."""
    import pydantic

    class Colour(pydantic.BaseModel):
        red: int
        name: str

    fields = probe.chat_fields(max_tokens=200)
    answer = await probe.openai.chat.completions.parse(**fields, response_format=Colour)
    value = answer.choices[0].message.parsed
    expect.that("the parsed object", isinstance(value, Colour), "a Colour", value)


@case("chat", "structured output", ours=RECORD)
async def grammars(probe: Probe) -> None:
    """A constrained answer is drawn under a grammar, a free one is not."""
    await probe.chat(response_format=chat_schema(POINT))
    await probe.chat(response_format={"type": "text"})
    held = [observed.call.sampling.grammar is not None for observed in probe.local.calls]
    expect.equal("calls with a grammar", held, [True, False])


@case("chat", "structured output")
async def plain_format(probe: Probe) -> None:
    """The type text asks for nothing."""
    expect.text("content", await text_of(probe, response_format={"type": "text"}))


# ---- reasoning


@case("chat", "reasoning", ours=SCRIPT)
async def thinking(probe: Probe) -> None:
    """Thinking stands apart from the text."""
    probe.script(THOUGHT)
    reply = of_choice((await probe.chat()).choices[0])
    expect.equal("reasoning", reply.reasoning.strip(), "Paris is in France.")
    expect.equal("text", reply.text, "It rains.")


@case("chat", "reasoning", ours=SCRIPT)
async def thinking_streamed(probe: Probe) -> None:
    """Streamed thinking comes before the text and adds up to the same."""
    probe.script(THOUGHT, THOUGHT)
    whole = of_choice((await probe.chat()).choices[0])
    chunks = await probe.chat_chunks()
    expect.equal("the streamed reply", of_chunks(chunks), whole)
    kinds = ["text" if chunk.choices[0].delta.content else "thinking" for chunk in chunks[1:-1]]
    expect.equal("order of the deltas", kinds, sorted(kinds, reverse=True))


@case("chat", "reasoning", ours=SCRIPT)
async def call_in_thinking(probe: Probe) -> None:
    """A call inside thinking is no call."""
    probe.script(f"<think>\nPerhaps {TIME_CALL}?\n</think>\n\nNo.")
    reply = of_choice((await probe.chat(**TOOLS)).choices[0])
    expect.equal("calls", reply.calls, ())
    expect.equal("text", reply.text, "No.")
    expect.contains("reasoning", reply.reasoning, "get_time")


@case("chat", "reasoning", ours=SCRIPT)
async def call_after_thinking(probe: Probe) -> None:
    """A call after thinking is a call."""
    probe.script(f"<think>\nI ask.\n</think>\n\n{TIME_CALL}")
    reply = of_choice((await probe.chat(**TOOLS)).choices[0])
    expect.equal("names", [call.name for call in reply.calls], ["get_time"])
    expect.equal("how it ended", reply.ended, "tool_calls")


@case("chat", "reasoning", ours=SCRIPT)
async def no_thinking(probe: Probe) -> None:
    """A model that does not think has no thinking in its answer."""
    probe.script("It rains.")
    message = (await probe.chat()).choices[0].message
    expect.equal("reasoning_content", (message.model_extra or {}).get("reasoning_content"), None)


@case("chat", "reasoning")
async def effort(probe: Probe) -> None:
    """reasoning_effort is taken."""
    answer = await probe.chat(reasoning_effort="low")
    expect.that("usage", answer.usage.completion_tokens > 0, "an answer", answer.usage)


@case("chat", "reasoning", ours=RECORD)
async def no_effort(probe: Probe) -> None:
    """reasoning_effort none closes the thinking where the template can."""
    await probe.chat(reasoning_effort="none")
    prompt = probe.local.prompt_text()
    expect.that("end of the prompt", prompt.endswith("<think>\n\n</think>\n\n"), "closed thinking", prompt[-60:])


@case("chat", "reasoning", ours=RECORD)
async def template_kwargs(probe: Probe) -> None:
    """chat_template_kwargs reach the template."""
    await probe.chat(extra_body={"chat_template_kwargs": {"enable_thinking": False}})
    prompt = probe.local.prompt_text()
    expect.that("end of the prompt", prompt.endswith("<think>\n\n</think>\n\n"), "closed thinking", prompt[-60:])
