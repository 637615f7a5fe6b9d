"""OpenAI Responses: items, the order of events, going on with an earlier response, thinking, logprobs."""

from __future__ import annotations

from ludus.checks.conformance import expect
from ludus.checks.conformance.asks import QUESTION, THOUGHT, TIME_CALL, user
from ludus.checks.conformance.case import EXTENSION, RECORD, SCRIPT, case
from ludus.checks.conformance.expect import TEXT, one_of, over
from ludus.checks.conformance.probe import Probe
from ludus.checks.conformance.words import RESPONSES, SYSTEM

ENDED = one_of("completed", "incomplete")


# ---- text


@case("responses", "text")
async def parts(probe: Probe) -> None:
    """A response has every part that the protocol names."""
    answer = await probe.answer()
    expect.parts(answer, object="response", id=TEXT, status=ENDED, error=None, model=TEXT, output_text=TEXT)


@case("responses", "text")
async def message_item(probe: Probe) -> None:
    """The text is in one message item of the assistant, in a part output_text."""
    (item,) = [item for item in (await probe.answer()).output if item.type == "message"]
    expect.parts(item, role="assistant", id=TEXT, status=ENDED)
    (part,) = item.content
    expect.parts(part, type="output_text", annotations=[])


@case("responses", "text")
async def repeated(probe: Probe) -> None:
    """A response states how it was asked for: temperature, top_p, tools, metadata."""
    asked = {"temperature": 0.5, "top_p": 0.9, "metadata": {"a": "b"}, "max_output_tokens": 30}
    expect.parts(await probe.answer(**asked), **asked, tools=[], parallel_tool_calls=True)


# ---- streaming


@case("responses", "streaming")
async def numbered(probe: Probe) -> None:
    """Events are numbered from 0 without a gap."""
    numbers = [event.sequence_number for event in await probe.events()]
    expect.equal("sequence_number", numbers, [*range(len(numbers))])


@case("responses", "streaming")
async def frame(probe: Probe) -> None:
    """The stream begins with created and in_progress, and ends with the whole response."""
    first, second, *_, last = [event.type for event in await probe.events()]
    expect.equal("the first events", (first, second), ("response.created", "response.in_progress"))
    expect.equal("the last event", last, one_of("response.completed", "response.incomplete"))


@case("responses", "streaming")
async def last_response(probe: Probe) -> None:
    """The response in the last event holds what its deltas held."""
    reply = await probe.stream()
    expect.equal("the last response", probe.words.whole(reply.raw[-1].response), reply)
    done = [event.text for event in reply.raw if event.type == "response.output_text.done"]
    expect.equal("text of the done event", "".join(done), reply.text)


@case("responses", "streaming")
async def places(probe: Probe) -> None:
    """Every event names the item it belongs to, by id and index."""
    events = await probe.events()
    opened = {event.output_index: event.item.id for event in events if event.type == "response.output_item.added"}
    for event in events:
        if event.type in ("response.output_text.delta", "response.output_text.done", "response.content_part.added"):
            expect.parts(event, item_id=opened.get(event.output_index), content_index=0)
    expect.equal("output_index of the items", sorted(opened), [*range(len(opened))])


@case("responses", "streaming")
async def helper(probe: Probe) -> None:
    """The SDK's stream helper puts together the text as it comes."""
    # Its final response is there for completed ones alone; a limit may cut this one.
    async with probe.sdk.stream(**probe.fields()) as stream:
        snapshots = [event.snapshot async for event in stream if event.type == "response.output_text.delta"]
    expect.equal("the last snapshot", snapshots[-1], (await probe.ask()).text)


# ---- previous_response_id


@case("responses", "records")
async def goes_on(probe: Probe) -> None:
    """previous_response_id goes on with that response: the prompt holds both."""
    first = await probe.ask()
    second = await probe.ask(previous_response_id=first.id, input="More.")
    expect.parts(second.raw, previous_response_id=first.id)
    expect.parts(second, num_prompt=over(first.num_prompt))


@case("responses", "records", ours=RECORD)
async def goes_on_exactly(probe: Probe) -> None:
    """Going on extends the tokens of the first turn, its thinking and calls too."""
    first = await probe.ask(f"<think>\nI ask.\n</think>\n\n{TIME_CALL}", **RESPONSES.calling)
    result = {"type": "function_call_output", "call_id": first.calls[0].id, "output": "noon"}
    await probe.ask("It is noon.", previous_response_id=first.id, input=[result], tools=RESPONSES.tools)
    before, after = probe.local.turns
    expect.parts(after, prefix=before.id, fork=None)


@case("responses", "records", ours=RECORD)
async def branches(probe: Probe) -> None:
    """One response can be gone on with twice: two branches."""
    first = await probe.ask()
    for text in ("More.", "Fewer."):
        await probe.ask(previous_response_id=first.id, input=text)
    root, *rest = probe.local.turns
    expect.equal("prefixes", [turn.prefix for turn in rest], [root.id, root.id])


# ---- thinking, logprobs, counts


@case("responses", "reasoning", ours=SCRIPT)
async def thinking_streamed(probe: Probe) -> None:
    """Streamed thinking adds up, and is closed before the message opens."""
    whole, streamed = await probe.ask(THOUGHT), await probe.stream(THOUGHT)
    expect.equal("the streamed reply", streamed, whole)
    kinds = [event.type for event in streamed.raw]
    closed = kinds.index("response.output_item.done")
    opened = [at for at, kind in enumerate(kinds) if kind == "response.output_item.added"][1]
    expect.equal("the opening of the message", opened, over(closed))


@case("responses", "logprobs", ours=RECORD)
async def logprobs(probe: Probe) -> None:
    """Asked for by include, they stand beside the text, one entry a token."""
    response = await probe.answer(include=["message.output_text.logprobs"], top_logprobs=2)
    entries = response.output[0].content[0].logprobs
    expect.equal("logprobs", [entry.logprob for entry in entries], [*probe.local.turns[0].sampled.logprobs])
    expect.equal("number of likeliest tokens", {len(entry.top_logprobs) for entry in entries}, {2})


@case("responses", "count_tokens", ours=EXTENSION)
async def count(probe: Probe) -> None:
    """The count of a request's tokens is what the request then uses."""
    fields = {"input": [user(QUESTION)], "instructions": SYSTEM, "tools": RESPONSES.tools}
    counted = await probe.sdk.input_tokens.count(model=probe.model, **fields)
    expect.equal("input_tokens", counted.input_tokens, (await probe.ask(**fields)).num_prompt)
