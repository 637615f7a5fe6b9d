"""Plain Completions: a prompt as text or as token ids, and nothing of chat."""

from __future__ import annotations

import math
from typing import Any

from ludus.checks.conformance import expect
from ludus.checks.conformance.case import RECORD, case
from ludus.checks.conformance.probe import Probe

PATH = "/completions"


def added_up(chunks: list[Any]) -> tuple[str, str | None]:
    """Text and finish_reason of a stream."""
    choices = [choice for chunk in chunks for choice in chunk.choices]
    ends = [choice.finish_reason for choice in choices if choice.finish_reason]
    return "".join(choice.text for choice in choices), ends[-1] if ends else None


@case("completions", "text")
async def parts(probe: Probe) -> None:
    """A completion has every part that the protocol names."""
    answer = await probe.complete()
    expect.equal("object", answer.object, "text_completion")
    expect.text("id", answer.id)
    expect.equal("number of choices", len(answer.choices), 1)
    expect.equal("index", answer.choices[0].index, 0)
    expect.that("text", isinstance(answer.choices[0].text, str), "a string", answer.choices[0].text)
    expect.one_of("finish_reason", answer.choices[0].finish_reason, ("stop", "length"))
    expect.equal("logprobs", answer.choices[0].logprobs, None)


@case("completions", "text", ours=RECORD)
async def plain_prompt(probe: Probe) -> None:
    """The prompt is taken as it is: no template, no tokens of chat."""
    await probe.complete(prompt="Colours: red,\n green,")
    (observed,) = probe.local.calls
    expect.equal("prompt", observed.call.prompt_ids, probe.local.encode("Colours: red,\n green,"))


@case("completions", "text", ours=RECORD)
async def token_prompt(probe: Probe) -> None:
    """A prompt of token ids is the prompt, id by id."""
    ids = list(probe.local.encode("Colours: red, green,"))
    answer = await probe.complete(prompt=ids)
    expect.equal("prompt", probe.local.calls[0].call.prompt_ids, tuple(ids))
    expect.equal("prompt_tokens", answer.usage.prompt_tokens, len(ids))


@case("completions", "text")
async def token_ids(probe: Probe) -> None:
    """A prompt of token ids is taken."""
    answer = await probe.complete(prompt=[5, 6, 7, 8])
    expect.equal("prompt_tokens", answer.usage.prompt_tokens, 4)


@case("completions", "text")
async def several_prompts(probe: Probe) -> None:
    """Several prompts at once: a choice for each, in their order."""
    answer = await probe.complete(prompt=["Colours: red,", "Colours: green,", "Colours: blue,"])
    expect.equal("indices", [choice.index for choice in answer.choices], [0, 1, 2])


@case("completions", "text")
async def echo(probe: Probe) -> None:
    """Echo: the text begins with the prompt."""
    text = (await probe.complete(prompt="Colours: red,", echo=True)).choices[0].text
    expect.that("the text", text.startswith("Colours: red,"), "beginning with the prompt", text)


@case("completions", "limits")
async def default_limit(probe: Probe) -> None:
    """Without max_tokens an answer has 16 tokens at most."""
    probe.script("red green blue white black " * 20)
    answer = await probe.openai.completions.create(model=probe.model, prompt="Colours:", temperature=0)
    used = answer.usage.completion_tokens
    expect.that("completion_tokens", used <= 16, "at most 16", used)


@case("completions", "logprobs")
async def logprobs(probe: Probe) -> None:
    """logprobs=2: tokens, their logprobs, the likeliest and the offsets in the text."""
    choice = (await probe.complete(logprobs=2, max_tokens=6)).choices[0]
    told = choice.logprobs
    lengths = {len(told.tokens), len(told.token_logprobs), len(told.top_logprobs), len(told.text_offset)}
    expect.equal("number of different lengths", len(lengths), 1)
    bad = [value for value in told.token_logprobs if not (math.isfinite(value) and value <= 0)]
    expect.equal("logprobs above 0 or without a value", bad, [])
    expect.that("the tokens", "".join(told.tokens).startswith(choice.text), f"beginning with {choice.text!r}", told)


@case("completions", "logprobs", ours=RECORD)
async def recorded(probe: Probe) -> None:
    """Each logprob is the one that is recorded for its token."""
    told = (await probe.complete(logprobs=1)).choices[0].logprobs
    expect.equal("logprobs", list(told.token_logprobs), list(probe.local.turns[0].sampled.logprobs))
