"""Plain Completions: a prompt as text or as token ids, and nothing of chat."""

from __future__ import annotations

import math
from typing import Any

from ludus.checks.conformance import expect
from ludus.checks.conformance.case import EXTENSION, RECORD, SCRIPT, case
from ludus.checks.conformance.cases.asks import UNICODE
from ludus.checks.conformance.probe import Probe
from ludus.checks.conformance.sse import DONE

PATH = "/completions"


def added_up(chunks: list[Any]) -> tuple[str, str | None]:
    """Text and finish_reason of a stream."""
    choices = [choice for chunk in chunks for choice in chunk.choices]
    ends = [choice.finish_reason for choice in choices if choice.finish_reason]
    return "".join(choice.text for choice in choices), ends[-1] if ends else None


@case("completions", "text", "a completion has every part that the protocol names")
async def parts(probe: Probe) -> None:
    answer = await probe.complete()
    expect.equal("object", answer.object, "text_completion")
    expect.text("id", answer.id)
    expect.equal("number of choices", len(answer.choices), 1)
    expect.equal("index", answer.choices[0].index, 0)
    expect.that("text", isinstance(answer.choices[0].text, str), "a string", answer.choices[0].text)
    expect.one_of("finish_reason", answer.choices[0].finish_reason, ("stop", "length"))
    expect.equal("logprobs", answer.choices[0].logprobs, None)


@case("completions", "text", "usage counts prompt and answer, and their sum")
async def usage(probe: Probe) -> None:
    counts = (await probe.complete()).usage
    expect.that("prompt_tokens", counts.prompt_tokens > 0, "more than 0", counts.prompt_tokens)
    expect.equal("total_tokens", counts.total_tokens, counts.prompt_tokens + counts.completion_tokens)


@case("completions", "text", "the prompt is taken as it is: no template, no tokens of chat", ours=RECORD)
async def plain_prompt(probe: Probe) -> None:
    await probe.complete(prompt="Colours: red,\n green,")
    (heard,) = probe.own.calls
    expect.equal("prompt", heard.call.prompt_ids, probe.own.encode("Colours: red,\n green,"))


@case("completions", "text", "a prompt of token ids is the prompt, id by id", ours=RECORD)
async def token_prompt(probe: Probe) -> None:
    ids = list(probe.own.encode("Colours: red, green,"))
    answer = await probe.complete(prompt=ids)
    expect.equal("prompt", probe.own.calls[0].call.prompt_ids, tuple(ids))
    expect.equal("prompt_tokens", answer.usage.prompt_tokens, len(ids))


@case("completions", "text", "a prompt of token ids is taken")
async def token_ids(probe: Probe) -> None:
    answer = await probe.complete(prompt=[5, 6, 7, 8])
    expect.equal("prompt_tokens", answer.usage.prompt_tokens, 4)


@case("completions", "text", "the text is what the model said, to the character", ours=SCRIPT)
async def exact(probe: Probe) -> None:
    probe.script(UNICODE)
    expect.equal("text", (await probe.complete()).choices[0].text, UNICODE)


@case("completions", "text", "several prompts at once: a choice for each, in their order")
async def several_prompts(probe: Probe) -> None:
    answer = await probe.complete(prompt=["Colours: red,", "Colours: green,", "Colours: blue,"])
    expect.equal("indices", [choice.index for choice in answer.choices], [0, 1, 2])


@case("completions", "text", "echo: the text begins with the prompt")
async def echo(probe: Probe) -> None:
    text = (await probe.complete(prompt="Colours: red,", echo=True)).choices[0].text
    expect.that("the text", text.startswith("Colours: red,"), "beginning with the prompt", text)


@case("completions", "text", "its id begins with cmpl- and leads to the turn", ours=RECORD)
async def shown_id(probe: Probe) -> None:
    completion_id = (await probe.complete()).id
    expect.that("id", completion_id.startswith("cmpl-"), "beginning with cmpl-", completion_id)
    expect.equal("end of the turn's id", probe.own.turns[0].id.split("-")[-1], completion_id.removeprefix("cmpl-"))


@case("completions", "streaming", "the deltas add up to the completion that comes at once")
async def adds_up(probe: Probe) -> None:
    whole = (await probe.complete(seed=5)).choices[0]
    expect.equal("text and end", added_up(await probe.completion_chunks(seed=5)), (whole.text, whole.finish_reason))


@case("completions", "streaming", "the stream ends with [DONE], after chunks of one id")
async def done(probe: Probe) -> None:
    events = (await probe.streamed(PATH, probe.completion_fields())).events
    expect.equal("the last event", events[-1].data, DONE)
    ids = {event.json["id"] for event in events[:-1]}
    expect.equal("number of different ids", len(ids), 1)
    expect.equal("objects", {event.json["object"] for event in events[:-1]}, {"text_completion"})


@case("completions", "streaming", "asked for, usage comes in a last chunk without choices")
async def usage_chunk(probe: Probe) -> None:
    chunks = await probe.completion_chunks(stream_options={"include_usage": True})
    expect.equal("choices of the last chunk", chunks[-1].choices, [])
    expect.that("usage of the last chunk", chunks[-1].usage is not None, "counts", chunks[-1].usage)


@case("completions", "unicode", "no streamed text holds a part of a character", ours=SCRIPT)
async def unicode_stream(probe: Probe) -> None:
    probe.script(UNICODE)
    expect.equal("text", added_up(await probe.completion_chunks())[0], UNICODE)


@case("completions", "stop", "an answer ends before its stop string")
async def stop(probe: Probe) -> None:
    text = (await probe.complete(stop=["e"])).choices[0].text
    expect.that("the text", "e" not in text, "no 'e' in it", text)


@case("completions", "limits", "max_tokens ends an answer, and the end is length")
async def limit(probe: Probe) -> None:
    probe.script("red green blue white black")
    answer = await probe.complete(max_tokens=3)
    expect.equal("completion_tokens", answer.usage.completion_tokens, 3)
    expect.equal("finish_reason", answer.choices[0].finish_reason, "length")


@case("completions", "limits", "without max_tokens an answer has 16 tokens at most")
async def default_limit(probe: Probe) -> None:
    probe.script("red green blue white black " * 20)
    answer = await probe.openai.completions.create(model=probe.model, prompt="Colours:", temperature=0)
    used = answer.usage.completion_tokens
    expect.that("completion_tokens", used <= 16, "at most 16", used)


@case("completions", "sampling fields", "the same seed gives the same text")
async def seed(probe: Probe) -> None:
    fields = {"temperature": 1, "seed": 11, "max_tokens": 12}
    texts = [(await probe.complete(**fields)).choices[0].text for _ in range(2)]
    expect.equal("the second text", texts[1], texts[0])


@case("completions", "n", "n=2 gives two choices, numbered from 0")
async def two(probe: Probe) -> None:
    answer = await probe.complete(n=2, temperature=1)
    expect.equal("indices", [choice.index for choice in answer.choices], [0, 1])


@case("completions", "logprobs", "logprobs=2: tokens, their logprobs, the likeliest and the places in the text")
async def logprobs(probe: Probe) -> None:
    choice = (await probe.complete(logprobs=2, max_tokens=6)).choices[0]
    told = choice.logprobs
    lengths = {len(told.tokens), len(told.token_logprobs), len(told.top_logprobs), len(told.text_offset)}
    expect.equal("number of different lengths", len(lengths), 1)
    bad = [value for value in told.token_logprobs if not (math.isfinite(value) and value <= 0)]
    expect.equal("logprobs above 0 or without a value", bad, [])
    expect.that("the tokens", "".join(told.tokens).startswith(choice.text), f"beginning with {choice.text!r}", told)


@case("completions", "logprobs", "each logprob is the one that is recorded for its token", ours=RECORD)
async def recorded(probe: Probe) -> None:
    told = (await probe.complete(logprobs=1)).choices[0].logprobs
    expect.equal("logprobs", list(told.token_logprobs), list(probe.own.turns[0].sampled.logprobs))


@case("completions", "retries", "a completion that is asked for again is one turn", ours=SCRIPT)
async def retry(probe: Probe) -> None:
    probe.script("red", "green")
    texts = [
        (await probe.complete(extra_headers={"x-stainless-retry-count": str(count)})).choices[0].text
        for count in range(2)
    ]
    expect.equal("texts", texts, ["red", "red"])
    expect.equal("number of turns", len(probe.own.turns), 1)


@case("completions", "headers", "fields without effect are named in x-ludus-ignored", ours=EXTENSION)
async def ignored(probe: Probe) -> None:
    answer = await probe.post(PATH, probe.completion_fields(user="me"))
    expect.equal("x-ludus-ignored", answer.headers.get("x-ludus-ignored"), "user")
