"""OpenAI Responses: items, the order of events, going on with an earlier response, limits, errors."""

from __future__ import annotations

from typing import Any

from ludus.checks.conformance import expect
from ludus.checks.conformance.case import EXTENSION, RECORD, SCRIPT, case
from ludus.checks.conformance.cases.asks import (
    QUESTION,
    RESPONSE_TOOLS,
    TIME_CALL,
    UNICODE,
)
from ludus.checks.conformance.probe import ASK, Probe
from ludus.checks.conformance.replies import of_response, of_response_events

PATH = "/responses"
TOOLS: dict[str, Any] = {"input": QUESTION, "tools": RESPONSE_TOOLS}
ENDED = ("completed", "incomplete")


# ---- text


@case("responses", "text", "a response has every part that the protocol names")
async def parts(probe: Probe) -> None:
    response = await probe.respond()
    expect.equal("object", response.object, "response")
    expect.text("id", response.id)
    expect.one_of("status", response.status, ENDED)
    expect.equal("error", response.error, None)
    expect.text("model", response.model)
    expect.text("output_text", response.output_text)


@case("responses", "text", "the text is in one message item of the assistant, in a part output_text")
async def message_item(probe: Probe) -> None:
    items = [item for item in (await probe.respond()).output if item.type == "message"]
    expect.equal("number of messages", len(items), 1)
    expect.equal("role", items[0].role, "assistant")
    expect.text("id of the item", items[0].id)
    expect.one_of("status of the item", items[0].status, ENDED)
    expect.equal("types of the parts", [part.type for part in items[0].content], ["output_text"])
    expect.equal("annotations", list(items[0].content[0].annotations), [])


@case("responses", "text", "usage counts input and output, and their sum")
async def usage(probe: Probe) -> None:
    counts = (await probe.respond()).usage
    expect.that("input_tokens", counts.input_tokens > 0, "more than 0", counts.input_tokens)
    expect.that("output_tokens", counts.output_tokens > 0, "more than 0", counts.output_tokens)
    expect.equal("total_tokens", counts.total_tokens, counts.input_tokens + counts.output_tokens)
    expect.that("details", counts.input_tokens_details and counts.output_tokens_details, "both", counts)


@case("responses", "text", "usage is what the engine got and sampled", ours=RECORD)
async def exact_usage(probe: Probe) -> None:
    counts = (await probe.respond()).usage
    (heard,) = probe.own.calls
    expect.equal("input_tokens", counts.input_tokens, len(heard.call.prompt_ids))
    expect.equal("output_tokens", counts.output_tokens, len(heard.token_ids))


@case("responses", "text", "input as text is input as one message of the user")
async def input_shapes(probe: Probe) -> None:
    text = await probe.respond(input="Name a colour.")
    for content in ("Name a colour.", [{"type": "input_text", "text": "Name a colour."}]):
        listed = await probe.respond(input=[{"role": "user", "content": content}])
        expect.equal("input_tokens", listed.usage.input_tokens, text.usage.input_tokens)


@case("responses", "text", "instructions are the first message: a longer prompt")
async def instructions(probe: Probe) -> None:
    plain, told = await probe.respond(), await probe.respond(instructions="You are a painter of few words.")
    longer = told.usage.input_tokens - plain.usage.input_tokens
    expect.that("tokens of the instructions", longer > 4, "more than 4", longer)


@case("responses", "text", "a developer's and a system's message are taken")
async def roles(probe: Probe) -> None:
    for role in ("developer", "system"):
        response = await probe.respond(input=[{"role": role, "content": "Be brief."}, *ASK])
        expect.text("output_text", response.output_text)


@case("responses", "text", "the items of a response can be sent back as they are, and the prompt grows")
async def items_back(probe: Probe) -> None:
    first = await probe.respond()
    items = [item.model_dump(exclude_none=True) for item in first.output]
    second = await probe.respond(input=[*ASK, *items, {"role": "user", "content": "More."}])
    expect.that(
        "input_tokens",
        second.usage.input_tokens > first.usage.input_tokens,
        f"more than {first.usage.input_tokens}",
        second.usage.input_tokens,
    )


@case("responses", "text", "a response tells how it was asked for: temperature, top_p, tools, metadata")
async def repeated(probe: Probe) -> None:
    asked = {"temperature": 0.5, "top_p": 0.9, "metadata": {"a": "b"}, "max_output_tokens": 30}
    response = await probe.respond(**asked)
    expect.equal("what it repeats", {name: getattr(response, name) for name in asked}, asked)
    expect.equal("tools", response.tools, [])
    expect.equal("parallel_tool_calls", response.parallel_tool_calls, True)


@case("responses", "text", "its id begins with resp_ and leads to the turn", ours=RECORD)
async def shown_id(probe: Probe) -> None:
    response_id = (await probe.respond()).id
    expect.that("id", response_id.startswith("resp_"), "beginning with resp_", response_id)
    expect.equal("end of the turn's id", probe.own.turns[0].id.split("-")[-1], response_id.removeprefix("resp_"))


@case("responses", "unicode", "text of many scripts arrives to the character, at once and streamed", ours=SCRIPT)
async def unicode_text(probe: Probe) -> None:
    probe.script(UNICODE, UNICODE)
    expect.equal("output_text", (await probe.respond()).output_text, UNICODE)
    expect.equal("the deltas together", of_response_events(await probe.response_events()).text, UNICODE)


# ---- streaming


@case("responses", "streaming", "events are numbered from 0 without a gap")
async def numbered(probe: Probe) -> None:
    expect.rising("sequence_number", [event.sequence_number for event in await probe.response_events()], start=0)


@case("responses", "streaming", "the stream begins with created and in_progress, and ends with the whole response")
async def frame(probe: Probe) -> None:
    kinds = [event.type for event in await probe.response_events()]
    expect.equal("the first events", kinds[:2], ["response.created", "response.in_progress"])
    expect.one_of("the last event", kinds[-1], ("response.completed", "response.incomplete"))


@case("responses", "streaming", "a text item opens, its part opens, deltas come, and all are closed in turn")
async def order(probe: Probe) -> None:
    kinds = [event.type for event in await probe.response_events()]
    told = [kind for kind in kinds[2:-1] if "reasoning" not in kind]
    without_repeats = [kind for idx, kind in enumerate(told) if idx == 0 or kind != told[idx - 1]]
    expected = [
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
    ]
    expect.equal("order of the events", without_repeats[-len(expected) :], expected)


@case("responses", "streaming", "the deltas add up to the text that the same request gets at once")
async def adds_up(probe: Probe) -> None:
    whole = of_response(await probe.respond())
    expect.equal("the streamed reply", of_response_events(await probe.response_events()), whole)


@case("responses", "streaming", "the response in the last event holds what its deltas said")
async def last_response(probe: Probe) -> None:
    events = await probe.response_events()
    expect.equal("the last response", of_response(events[-1].response), of_response_events(events))
    done = [event.text for event in events if event.type == "response.output_text.done"]
    expect.equal("text of the done event", "".join(done), of_response_events(events).text)


@case("responses", "streaming", "every event names the item it belongs to, by id and place")
async def places(probe: Probe) -> None:
    events = await probe.response_events()
    opened = {event.output_index: event.item.id for event in events if event.type == "response.output_item.added"}
    for event in events:
        if event.type in ("response.output_text.delta", "response.output_text.done", "response.content_part.added"):
            expect.equal(f"item of {event.type}", event.item_id, opened.get(event.output_index))
            expect.equal(f"content_index of {event.type}", event.content_index, 0)
    expect.rising("output_index of the items", sorted(opened), start=0)


@case("responses", "streaming", "on the wire every event has its type as its name, one line of JSON, one id")
async def wire(probe: Probe) -> None:
    streamed = await probe.streamed(PATH, probe.response_fields())
    kind = streamed.headers.get("content-type", "")
    expect.that("content-type", kind.startswith("text/event-stream"), "text/event-stream", kind)
    events = [event for event in streamed.events if event.data != "[DONE]"]
    for event in events:
        expect.equal("name of the event", event.name, expect.json_object("the event", event.data).get("type"))
    ids = {event.json["response"]["id"] for event in events if "response" in event.json}
    expect.equal("number of different ids", len(ids), 1)


@case("responses", "streaming", "the SDK's stream helper puts together the text as it comes")
async def helper(probe: Probe) -> None:
    # Its final response is there for completed ones alone; a limit may cut this one.
    async with probe.openai.responses.stream(**probe.response_fields()) as stream:
        snapshots = [event.snapshot async for event in stream if event.type == "response.output_text.delta"]
    expect.equal("the last snapshot", snapshots[-1:], [(await probe.respond()).output_text])


@case("responses", "streaming", "streamed usage is that of the response at once")
async def same_usage(probe: Probe) -> None:
    whole, streamed = (await probe.respond()).usage, (await probe.response_events())[-1].response.usage
    expect.equal("output_tokens", streamed.output_tokens, whole.output_tokens)
    expect.equal("input_tokens", streamed.input_tokens, whole.input_tokens)


# ---- previous_response_id


@case("responses", "records", "previous_response_id goes on with that response: the prompt holds both")
async def goes_on(probe: Probe) -> None:
    first = await probe.respond()
    second = await probe.respond(previous_response_id=first.id, input="More.")
    expect.equal("previous_response_id", second.previous_response_id, first.id)
    expect.that(
        "input_tokens",
        second.usage.input_tokens > first.usage.input_tokens,
        f"more than {first.usage.input_tokens}",
        second.usage.input_tokens,
    )


@case("responses", "records", "going on extends the tokens of the first turn, its thinking and calls too", ours=RECORD)
async def goes_on_exactly(probe: Probe) -> None:
    probe.script(f"<think>\nI ask.\n</think>\n\n{TIME_CALL}", "It is noon.")
    first = await probe.respond(**TOOLS)
    result = {"type": "function_call_output", "call_id": of_response(first).calls[0].id, "output": "noon"}
    await probe.respond(previous_response_id=first.id, input=[result], tools=RESPONSE_TOOLS)
    before, after = probe.own.turns
    expect.equal("prefix and fork of the second turn", (after.prefix, after.fork), (before.id, None))


@case("responses", "records", "one response can be gone on with twice: two branches", ours=RECORD)
async def branches(probe: Probe) -> None:
    first = await probe.respond()
    for text in ("More.", "Fewer."):
        await probe.respond(previous_response_id=first.id, input=text)
    root, *rest = probe.own.turns
    expect.equal("prefixes", [turn.prefix for turn in rest], [root.id, root.id])


# ---- logprobs, limits, errors, headers


@case("responses", "logprobs", "asked for by include, they stand beside the text, one entry a token", ours=RECORD)
async def logprobs(probe: Probe) -> None:
    response = await probe.respond(include=["message.output_text.logprobs"], top_logprobs=2)
    entries = response.output[0].content[0].logprobs
    sampled = probe.own.turns[0].sampled
    expect.equal("logprobs", [entry.logprob for entry in entries], list(sampled.logprobs))
    expect.equal("number of likeliest tokens", {len(entry.top_logprobs) for entry in entries}, {2})


@case("responses", "limits", "max_output_tokens: the response is incomplete, and says why")
async def limit(probe: Probe) -> None:
    probe.script("red green blue white black")
    response = await probe.respond(max_output_tokens=16 if probe.is_foreign else 3)
    expect.equal("status", response.status, "incomplete")
    expect.equal("reason", response.incomplete_details.reason, "max_output_tokens")


@case("responses", "limits", "max_output_tokens streamed: the last event is response.incomplete", ours=SCRIPT)
async def limit_streamed(probe: Probe) -> None:
    probe.script("red green blue white black")
    events = await probe.response_events(max_output_tokens=3)
    expect.equal("the last event", events[-1].type, "response.incomplete")
    expect.equal("output_tokens", events[-1].response.usage.output_tokens, 3)


@case("responses", "sampling fields", "what a request names is what the engine samples with", ours=RECORD)
async def fields_act(probe: Probe) -> None:
    await probe.respond(temperature=0.7, top_p=0.9, max_output_tokens=30)
    sampling = probe.own.calls[0].call.sampling
    got = (sampling.temperature, sampling.top_p, sampling.max_new_tokens)
    expect.equal("temperature, top_p, limit", got, (0.7, 0.9, 30))


@case("responses", "headers", "fields without effect are taken and named in x-ludus-ignored", ours=EXTENSION)
async def ignored(probe: Probe) -> None:
    answer = await probe.post(PATH, probe.response_fields(store=True, user="me", service_tier="auto"))
    told = sorted(answer.headers.get("x-ludus-ignored", "").split(", "))
    expect.equal("x-ludus-ignored", told, ["service_tier", "store", "user"])


@case("responses", "count_tokens", "the count of a request's tokens is what the request then uses", ours=EXTENSION)
async def count(probe: Probe) -> None:
    fields = {"model": probe.model, "input": QUESTION, "instructions": "Be brief.", "tools": RESPONSE_TOOLS}
    counted = await probe.openai.responses.input_tokens.count(**fields)
    used = (await probe.respond(**{name: value for name, value in fields.items() if name != "model"})).usage
    expect.equal("input_tokens", counted.input_tokens, used.input_tokens)


@case("responses", "retries", "a response that is asked for again is one turn and one answer", ours=SCRIPT)
async def retry(probe: Probe) -> None:
    probe.script("red", "green")
    ids = [(await probe.respond(extra_headers={"x-stainless-retry-count": str(count)})).id for count in range(2)]
    expect.equal("the second id", ids[1], ids[0])
    expect.equal("number of turns", len(probe.own.turns), 1)
