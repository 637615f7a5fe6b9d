"""Plain Completions: a prompt as text or as token ids, and nothing of chat."""

from __future__ import annotations

from ludus.checks.conformance import expect
from ludus.checks.conformance.asks import COLOURS
from ludus.checks.conformance.case import RECORD, case
from ludus.checks.conformance.expect import LOGPROBS, TEXT, at_most, beginning, one_of
from ludus.checks.conformance.probe import Probe

RED = "Colours: red,"


@case("completions", "text")
async def parts(probe: Probe) -> None:
    """A completion has every part that the protocol names."""
    answer = await probe.answer()
    expect.parts(answer, object="text_completion", id=TEXT)
    (choice,) = answer.choices
    expect.parts(choice, index=0, finish_reason=one_of("stop", "length"), logprobs=None)
    expect.that("text", isinstance(choice.text, str), "a string", choice.text)


@case("completions", "text", ours=RECORD)
async def plain_prompt(probe: Probe) -> None:
    """The prompt is taken as it is: no template, no tokens of chat."""
    await probe.ask(prompt=f"{RED}\n green,")
    (observed,) = probe.local.calls
    expect.parts(observed.call, prompt_ids=probe.local.encode(f"{RED}\n green,"))


@case("completions", "text", ours=RECORD)
async def token_prompt(probe: Probe) -> None:
    """A prompt of token ids is the prompt, id by id."""
    ids = probe.local.encode(RED)
    expect.parts(await probe.ask(prompt=[*ids]), num_prompt=len(ids))
    expect.parts(probe.local.calls[0].call, prompt_ids=ids)


@case("completions", "text")
async def token_ids(probe: Probe) -> None:
    """A prompt of token ids is taken."""
    expect.parts(await probe.ask(prompt=[5, 6, 7, 8]), num_prompt=4)


@case("completions", "text")
async def several_prompts(probe: Probe) -> None:
    """Several prompts at once: a choice for each, in their order."""
    choices = (await probe.answer(prompt=[RED, "Colours: green,", "Colours: blue,"])).choices
    expect.equal("indices", [choice.index for choice in choices], [0, 1, 2])


@case("completions", "text")
async def echo(probe: Probe) -> None:
    """Echo: the text begins with the prompt."""
    expect.parts(await probe.ask(prompt=RED, echo=True), text=beginning(RED))


@case("completions", "limits")
async def default_limit(probe: Probe) -> None:
    """Without max_tokens an answer has 16 tokens at most."""
    probe.script(f"{COLOURS} " * 20)
    answer = await probe.sdk.create(model=probe.model, prompt="Colours:", temperature=0)
    expect.parts(answer.usage, completion_tokens=at_most(16))


@case("completions", "logprobs")
async def logprobs(probe: Probe) -> None:
    """logprobs=2: tokens, their logprobs, the likeliest and the offsets in the text."""
    choice = (await probe.answer(logprobs=2, max_tokens=6)).choices[0]
    beside = choice.logprobs
    lengths = {len(beside.tokens), len(beside.token_logprobs), len(beside.top_logprobs), len(beside.text_offset)}
    expect.equal("number of different lengths", len(lengths), 1)
    expect.parts(beside, token_logprobs=LOGPROBS)
    expect.equal("the tokens", "".join(beside.tokens), beginning(choice.text))


@case("completions", "logprobs", ours=RECORD)
async def recorded(probe: Probe) -> None:
    """Each logprob is the one that is recorded for its token."""
    beside = (await probe.answer(logprobs=1)).choices[0].logprobs
    expect.equal("logprobs", [*beside.token_logprobs], [*probe.local.turns[0].sampled.logprobs])
