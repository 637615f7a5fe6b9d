"""Chat Completions: text at once, counts, ids, messages of every kind, several choices, unicode."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from ludus.checks.conformance import expect
from ludus.checks.conformance.case import EXTENSION, RECORD, SCRIPT, case
from ludus.checks.conformance.cases.asks import UNICODE
from ludus.checks.conformance.probe import ASK, Probe
from ludus.checks.conformance.replies import of_choice


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


@case("chat", "text")
async def parts(probe: Probe) -> None:
    """An answer has every part that the protocol names."""
    answer = await probe.chat()
    expect.text("id", answer.id)
    expect.equal("object", answer.object, "chat.completion")
    expect.that("created", answer.created > 1_500_000_000, "a time in seconds", answer.created)
    expect.text("model", answer.model)
    expect.equal("number of choices", len(answer.choices), 1)
    choice = answer.choices[0]
    expect.equal("index", choice.index, 0)
    expect.equal("role", choice.message.role, "assistant")
    expect.text("content", choice.message.content)
    expect.one_of("finish_reason", choice.finish_reason, ("stop", "length"))
    expect.that("tool_calls", not choice.message.tool_calls, "none", choice.message.tool_calls)


@case("chat", "text")
async def fresh_ids(probe: Probe) -> None:
    """Two answers have different ids."""
    first, second = await asyncio.gather(probe.chat(), probe.chat())
    expect.that("ids", first.id != second.id, "two different ones", (first.id, second.id))


@case("chat", "text")
async def developer_message(probe: Probe) -> None:
    """The role developer is taken."""
    answer = await probe.chat(messages=[{"role": "developer", "content": "Be brief."}, *ASK])
    expect.text("content", answer.choices[0].message.content)


@case("chat", "text")
async def history_shapes(probe: Probe) -> None:
    """An assistant's text parts and a name are taken back."""
    said = {"role": "assistant", "content": [{"type": "text", "text": "Red."}]}
    answer = await probe.chat(messages=[{**ASK[0], "name": "Ann"}, said, user("Another one.")])
    expect.text("content", answer.choices[0].message.content)


@case("chat", "text")
async def null_fields(probe: Probe) -> None:
    """A reply with its null fields is taken back, as a plain dump of the SDK's object has them."""
    reply = (await probe.chat()).choices[0].message.model_dump()
    answer = await probe.chat(messages=[*ASK, reply, user("More.")])
    expect.text("content", answer.choices[0].message.content)


@case("chat", "text", ours=SCRIPT)
async def empty(probe: Probe) -> None:
    """An answer without a word is empty text, not null."""
    probe.script("")
    answer = await probe.chat()
    expect.equal("content", answer.choices[0].message.content, "")
    expect.equal("completion_tokens", answer.usage.completion_tokens, 1)


@case("chat", "text", ours=RECORD)
async def prompt(probe: Probe) -> None:
    """The model reads the messages as its template shows them, to the character."""
    await probe.chat(messages=[{"role": "system", "content": "Be brief."}, user(" a\nb "), *ASK])
    expected = (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n a\nb <|im_end|>\n"
        f"<|im_start|>user\n{ASK[0]['content']}<|im_end|>\n<|im_start|>assistant\n"
    )
    expect.equal("the prompt", probe.local.prompt_text(), expected)


@case("chat", "text", ours=RECORD)
async def second_prompt(probe: Probe) -> None:
    """The second turn's prompt is the first's, the reply, and the new message."""
    probe.script("Red.")
    await probe.chat()
    first = probe.local.prompt_text()
    await probe.chat(messages=[*ASK, {"role": "assistant", "content": "Red."}, user("More.")])
    expected = f"{first}Red.<|im_end|>\n<|im_start|>user\nMore.<|im_end|>\n<|im_start|>assistant\n"
    expect.equal("the second prompt", probe.local.prompt_text(), expected)


# ---- unicode


@case("chat", "unicode")
async def unicode_prompt(probe: Probe) -> None:
    """Text of many scripts, joined emoji and separators of lines can be asked."""
    answer = await probe.chat(messages=[user(UNICODE)])
    expect.text("content", answer.choices[0].message.content)


@case("chat", "unicode", ours=SCRIPT)
async def unicode_answer(probe: Probe) -> None:
    """Text of many scripts arrives to the character."""
    probe.script(UNICODE)
    expect.equal("content", (await probe.chat()).choices[0].message.content, UNICODE)


@case("chat", "unicode")
async def escaped_prompt(probe: Probe) -> None:
    """A character beyond the first plane is the same prompt, escaped in JSON or not."""
    body = probe.chat_fields(messages=[user("A cat: 🐱")])
    escaped = (await probe.post("/chat/completions", body)).json()
    unescaped = json.dumps(body, ensure_ascii=False).encode()
    raw = (await probe.post("/chat/completions", content=unescaped)).json()
    expect.equal("prompt_tokens", raw["usage"]["prompt_tokens"], escaped["usage"]["prompt_tokens"])


# ---- n


@case("chat", "n", ours=RECORD)
async def usage_of_choices(probe: Probe) -> None:
    """Usage counts every choice once, and the prompt once."""
    counts = (await probe.chat(n=3, temperature=1)).usage
    calls = probe.local.calls
    expect.equal("prompt_tokens", counts.prompt_tokens, len(calls[0].call.prompt_ids))
    expect.equal("completion_tokens", counts.completion_tokens, sum(len(call.token_ids) for call in calls))


@case("chat", "n", ours=RECORD)
async def turns_of_choices(probe: Probe) -> None:
    """Each choice is a turn of its own, and names the id that rewards it."""
    answer = await probe.chat(n=3, temperature=1)
    named = [choice.model_extra.get("turn_id") for choice in answer.choices]
    expect.equal("the first choice's", named[0], answer.id)
    expect.equal("ids of the turns", sorted(turn.id for turn in probe.local.turns), sorted(map(str, named)))


@case("chat", "n", ours=RECORD)
async def seeds_of_choices(probe: Probe) -> None:
    """Choices are drawn apart: their seeds count up from the request's."""
    answer = await probe.chat(n=3, temperature=1, seed=7)
    seeds = [observed.call.sampling.seed for observed in probe.local.calls]
    expect.equal("seeds", sorted(map(int, seeds)), [7, 8, 9])  # type: ignore[arg-type]
    texts = {choice.message.content for choice in answer.choices}
    expect.that("texts", len(texts) > 1, "different ones", texts)


@case("chat", "n")
async def streamed_choices(probe: Probe) -> None:
    """With a stream every choice has its role, its deltas and its end under its index."""
    chunks = await probe.chat_chunks(n=2, temperature=1, seed=3)
    for index in (0, 1):
        own = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
        expect.equal(f"roles of choice {index}", [c.delta.role for c in own if c.delta.role], ["assistant"])
        ends = [choice.finish_reason for choice in own if choice.finish_reason]
        expect.equal(f"number of ends of choice {index}", len(ends), 1)
    expect.equal("indices", sorted({choice.index for chunk in chunks for choice in chunk.choices}), [0, 1])


@case("chat", "n", ours=SCRIPT)
async def choices_apart(probe: Probe) -> None:
    """The choices of one request do not mix."""
    answer = await probe.chat(n=4, temperature=1, seed=1)
    said = {probe.local.decode(turn.sampled.token_ids).removesuffix("<|im_end|>") for turn in probe.local.turns}
    expect.equal("texts", {of_choice(choice).text for choice in answer.choices}, said)


@case("chat", "n", ours=EXTENSION)
async def too_many_choices(probe: Probe) -> None:
    """n=129 is refused, as more than 128 are by the protocol's own server."""
    await probe.refused(probe.chat(n=129), param="n")
