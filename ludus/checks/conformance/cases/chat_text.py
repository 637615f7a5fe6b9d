"""Chat Completions: text at once, counts, ids, messages of every kind, several choices, unicode."""

from __future__ import annotations

import asyncio
import json

from ludus.checks.conformance import expect
from ludus.checks.conformance.asks import ASK, UNICODE, message, user
from ludus.checks.conformance.case import RECORD, SCRIPT, case
from ludus.checks.conformance.expect import EMPTY, TEXT, one_of, over
from ludus.checks.conformance.probe import Probe


@case("chat", "text")
async def parts(probe: Probe) -> None:
    """An answer has every part that the protocol names."""
    answer = await probe.answer()
    expect.parts(answer, id=TEXT, object="chat.completion", created=over(1_500_000_000), model=TEXT)
    (choice,) = answer.choices
    expect.parts(choice, index=0, finish_reason=one_of("stop", "length"))
    expect.parts(choice.message, role="assistant", content=TEXT, tool_calls=EMPTY)


@case("chat", "text")
async def fresh_ids(probe: Probe) -> None:
    """Two answers have different ids."""
    replies = await asyncio.gather(probe.ask(), probe.ask())
    expect.equal("number of different ids", len({reply.id for reply in replies}), 2)


@case("chat", "text")
async def null_fields(probe: Probe) -> None:
    """A reply with its null fields is taken back, as a plain dump of the SDK's object has them."""
    reply = (await probe.answer()).choices[0].message.model_dump()
    expect.parts(await probe.ask(messages=[*ASK, reply, user("More.")]), text=TEXT)


@case("chat", "text", ours=SCRIPT)
async def empty(probe: Probe) -> None:
    """An answer without a word is empty text, not null."""
    reply = await probe.ask("")
    expect.parts(reply, text="", num_sampled=1)
    expect.parts(reply.raw.choices[0].message, content="")


@case("chat", "text", ours=RECORD)
async def prompt(probe: Probe) -> None:
    """The model reads the messages as its template shows them, to the character."""
    await probe.ask(messages=[message("system", "Be brief."), user(" a\nb "), *ASK])
    expected = (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n a\nb <|im_end|>\n"
        f"<|im_start|>user\n{ASK[0]['content']}<|im_end|>\n<|im_start|>assistant\n"
    )
    expect.equal("the prompt", probe.local.prompt_text(), expected)


@case("chat", "text", ours=RECORD)
async def second_prompt(probe: Probe) -> None:
    """The second turn's prompt is the first's, the reply, and the new message."""
    await probe.ask("Red.")
    first = probe.local.prompt_text()
    await probe.ask(messages=[*ASK, message("assistant", "Red."), user("More.")])
    expected = f"{first}Red.<|im_end|>\n<|im_start|>user\nMore.<|im_end|>\n<|im_start|>assistant\n"
    expect.equal("the second prompt", probe.local.prompt_text(), expected)


# ---- unicode


@case("chat", "unicode")
async def unicode_prompt(probe: Probe) -> None:
    """Text of many scripts, joined emoji and separators of lines can be asked."""
    expect.parts(await probe.ask(messages=[user(UNICODE)]), text=TEXT)


@case("chat", "unicode", ours=SCRIPT)
async def unicode_answer(probe: Probe) -> None:
    """Text of many scripts arrives to the character."""
    expect.parts(await probe.ask(UNICODE), text=UNICODE)


@case("chat", "unicode")
async def escaped_prompt(probe: Probe) -> None:
    """A character beyond the first plane is the same prompt, escaped in JSON or not."""
    fields = probe.fields(messages=[user("A cat: 🐱")])
    bodies = [json.dumps(fields, ensure_ascii=is_escaped).encode() for is_escaped in (True, False)]
    first, second = [(await probe.post(content=body)).json()["usage"]["prompt_tokens"] for body in bodies]
    expect.equal("prompt_tokens", second, first)


# ---- n


@case("chat", "n", ours=RECORD)
async def usage_of_choices(probe: Probe) -> None:
    """Usage counts every choice once, and the prompt once."""
    reply, calls = await probe.ask(n=3, temperature=1), probe.local.calls
    num_sampled = sum(len(observed.token_ids) for observed in calls)
    expect.parts(reply, num_prompt=len(calls[0].call.prompt_ids), num_sampled=num_sampled)


@case("chat", "n", ours=RECORD)
async def turns_of_choices(probe: Probe) -> None:
    """Each choice is a turn of its own, and names the id that rewards it."""
    answer = await probe.answer(n=3, temperature=1)
    named = [choice.model_extra.get("turn_id") for choice in answer.choices]
    expect.equal("the first choice's", named[0], answer.id)
    expect.equal("ids of the turns", sorted(turn.id for turn in probe.local.turns), sorted(map(str, named)))


@case("chat", "n", ours=RECORD)
async def seeds_of_choices(probe: Probe) -> None:
    """Choices are drawn apart: their seeds count up from the request's."""
    choices = (await probe.answer(n=3, temperature=1, seed=7)).choices
    expect.equal("seeds", {observed.call.sampling.seed for observed in probe.local.calls}, {7, 8, 9})
    expect.equal("number of different texts", len({choice.message.content for choice in choices}), over(1))


@case("chat", "n")
async def streamed_choices(probe: Probe) -> None:
    """With a stream every choice has its role, its deltas and its end under its index."""
    choices = [choice for chunk in await probe.events(n=2, temperature=1, seed=3) for choice in chunk.choices]
    expect.equal("indices", {choice.index for choice in choices}, {0, 1})
    for index in (0, 1):
        own = [choice for choice in choices if choice.index == index]
        expect.equal(f"roles of choice {index}", [c.delta.role for c in own if c.delta.role], ["assistant"])
        expect.equal(f"number of ends of choice {index}", sum(bool(choice.finish_reason) for choice in own), 1)


@case("chat", "n", ours=SCRIPT)
async def choices_apart(probe: Probe) -> None:
    """The choices of one request do not mix."""
    choices = (await probe.answer(n=4, temperature=1, seed=1)).choices
    recorded = {probe.local.decode(turn.sampled.token_ids).removesuffix("<|im_end|>") for turn in probe.local.turns}
    expect.equal("texts", {choice.message.content for choice in choices}, recorded)
