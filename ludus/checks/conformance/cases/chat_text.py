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


@case("chat", "text", "an answer has every part that the protocol names")
async def parts(probe: Probe) -> None:
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


@case("chat", "text", "usage counts prompt and answer, and their sum")
async def usage(probe: Probe) -> None:
    counts = (await probe.chat()).usage
    expect.that("usage", counts is not None, "counts", counts)
    expect.that("prompt_tokens", counts.prompt_tokens > 0, "more than 0", counts.prompt_tokens)
    expect.that("completion_tokens", counts.completion_tokens > 0, "more than 0", counts.completion_tokens)
    expect.equal("total_tokens", counts.total_tokens, counts.prompt_tokens + counts.completion_tokens)


@case("chat", "text", "two answers have different ids")
async def fresh_ids(probe: Probe) -> None:
    first, second = await asyncio.gather(probe.chat(), probe.chat())
    expect.that("ids", first.id != second.id, "two different ones", (first.id, second.id))


@case("chat", "text", "a system message is read: it makes the prompt longer")
async def system_message(probe: Probe) -> None:
    plain = await probe.chat()
    told = await probe.chat(messages=[{"role": "system", "content": "You are a painter of few words."}, *ASK])
    longer = told.usage.prompt_tokens - plain.usage.prompt_tokens
    expect.that("prompt tokens of the system message", longer > 4, "more than 4", longer)


@case("chat", "text", "the role developer is taken")
async def developer_message(probe: Probe) -> None:
    answer = await probe.chat(messages=[{"role": "developer", "content": "Be brief."}, *ASK])
    expect.text("content", answer.choices[0].message.content)


@case("chat", "text", "content in text parts is the same prompt as the text in one piece")
async def content_parts(probe: Probe) -> None:
    whole = await probe.chat(messages=[user("Name some colours.")])
    parts_ = [{"type": "text", "text": "Name some colours."}]
    in_parts = await probe.chat(messages=[user(parts_)])
    expect.equal("prompt_tokens", in_parts.usage.prompt_tokens, whole.usage.prompt_tokens)


@case("chat", "text", "an assistant's text parts and a name are taken back")
async def history_shapes(probe: Probe) -> None:
    said = {"role": "assistant", "content": [{"type": "text", "text": "Red."}]}
    answer = await probe.chat(messages=[{**ASK[0], "name": "Ann"}, said, user("Another one.")])
    expect.text("content", answer.choices[0].message.content)


@case("chat", "text", "a reply can be sent back as the SDK's own object, and the prompt grows by it")
async def reply_as_history(probe: Probe) -> None:
    first = await probe.chat()
    reply = first.choices[0].message.model_dump(exclude_none=True)
    second = await probe.chat(messages=[*ASK, reply, user("More.")])
    expect.that(
        "prompt_tokens",
        second.usage.prompt_tokens > first.usage.prompt_tokens,
        f"more than {first.usage.prompt_tokens}",
        second.usage.prompt_tokens,
    )


@case("chat", "text", "a reply with its null fields is taken back, as a plain dump of the SDK's object has them")
async def null_fields(probe: Probe) -> None:
    reply = (await probe.chat()).choices[0].message.model_dump()
    answer = await probe.chat(messages=[*ASK, reply, user("More.")])
    expect.text("content", answer.choices[0].message.content)


@case("chat", "text", "the text is what the model said, to the character", ours=SCRIPT)
async def exact(probe: Probe) -> None:
    said = '  Two blanks,\n\n\ttabs \\ and "quotes" — </s> <b> & 100%.\r\n'
    probe.script(said)
    expect.equal("content", (await probe.chat()).choices[0].message.content, said)


@case("chat", "text", "an answer without a word is empty text, not null", ours=SCRIPT)
async def empty(probe: Probe) -> None:
    probe.script("")
    answer = await probe.chat()
    expect.equal("content", answer.choices[0].message.content, "")
    expect.equal("completion_tokens", answer.usage.completion_tokens, 1)


@case("chat", "text", "usage is what the engine got and sampled, its last token included", ours=RECORD)
async def exact_usage(probe: Probe) -> None:
    counts = (await probe.chat()).usage
    call = probe.own.calls[0]
    expect.equal("prompt_tokens", counts.prompt_tokens, len(call.call.prompt_ids))
    expect.equal("completion_tokens", counts.completion_tokens, len(call.token_ids))


@case("chat", "text", "the model reads the messages as its template shows them, to the character", ours=RECORD)
async def prompt(probe: Probe) -> None:
    await probe.chat(messages=[{"role": "system", "content": "Be brief."}, user(" a\nb "), *ASK])
    expected = (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n a\nb <|im_end|>\n"
        f"<|im_start|>user\n{ASK[0]['content']}<|im_end|>\n<|im_start|>assistant\n"
    )
    expect.equal("the prompt", probe.own.prompt_text(), expected)


@case("chat", "text", "the second turn's prompt is the first's, the reply, and the new message", ours=RECORD)
async def second_prompt(probe: Probe) -> None:
    probe.script("Red.")
    await probe.chat()
    first = probe.own.prompt_text()
    await probe.chat(messages=[*ASK, {"role": "assistant", "content": "Red."}, user("More.")])
    expected = f"{first}Red.<|im_end|>\n<|im_start|>user\nMore.<|im_end|>\n<|im_start|>assistant\n"
    expect.equal("the second prompt", probe.own.prompt_text(), expected)


# ---- unicode


@case("chat", "unicode", "text of many scripts, joined emoji and separators of lines can be asked")
async def unicode_prompt(probe: Probe) -> None:
    answer = await probe.chat(messages=[user(UNICODE)])
    expect.text("content", answer.choices[0].message.content)


@case("chat", "unicode", "text of many scripts arrives to the character", ours=SCRIPT)
async def unicode_answer(probe: Probe) -> None:
    probe.script(UNICODE)
    expect.equal("content", (await probe.chat()).choices[0].message.content, UNICODE)


@case("chat", "unicode", "no delta holds a part of a character, and all add up to the text", ours=SCRIPT)
async def unicode_stream(probe: Probe) -> None:
    probe.script(UNICODE)
    deltas = [chunk.choices[0].delta.content or "" for chunk in await probe.chat_chunks()]
    broken = [delta for delta in deltas if "\ufffd" in delta]
    expect.equal("deltas with a broken character", broken, [])
    expect.equal("the deltas together", "".join(deltas), UNICODE)


@case("chat", "unicode", "a character beyond the first plane is the same prompt, escaped in JSON or not")
async def escaped_prompt(probe: Probe) -> None:
    body = probe.chat_fields(messages=[user("A cat: 🐱")])
    escaped = (await probe.post("/chat/completions", body)).json()
    unescaped = json.dumps(body, ensure_ascii=False).encode()
    raw = (await probe.post("/chat/completions", content=unescaped)).json()
    expect.equal("prompt_tokens", raw["usage"]["prompt_tokens"], escaped["usage"]["prompt_tokens"])


# ---- n


@case("chat", "n", "n=2 gives two choices, numbered from 0")
async def two_choices(probe: Probe) -> None:
    answer = await probe.chat(n=2, temperature=1, seed=3)
    expect.equal("indices", [choice.index for choice in answer.choices], [0, 1])
    for choice in answer.choices:
        expect.text("content", choice.message.content)


@case("chat", "n", "usage counts every choice once, and the prompt once", ours=RECORD)
async def usage_of_choices(probe: Probe) -> None:
    counts = (await probe.chat(n=3, temperature=1)).usage
    calls = probe.own.calls
    expect.equal("prompt_tokens", counts.prompt_tokens, len(calls[0].call.prompt_ids))
    expect.equal("completion_tokens", counts.completion_tokens, sum(len(call.token_ids) for call in calls))


@case("chat", "n", "each choice is a turn of its own, and names the id that rewards it", ours=RECORD)
async def turns_of_choices(probe: Probe) -> None:
    answer = await probe.chat(n=3, temperature=1)
    named = [choice.model_extra.get("turn_id") for choice in answer.choices]
    expect.equal("the first choice's", named[0], answer.id)
    expect.equal("ids of the turns", sorted(turn.id for turn in probe.own.turns), sorted(map(str, named)))


@case("chat", "n", "choices are drawn apart: their seeds count up from the request's", ours=RECORD)
async def seeds_of_choices(probe: Probe) -> None:
    answer = await probe.chat(n=3, temperature=1, seed=7)
    seeds = [heard.call.sampling.seed for heard in probe.own.calls]
    expect.equal("seeds", sorted(map(int, seeds)), [7, 8, 9])  # type: ignore[arg-type]
    texts = {choice.message.content for choice in answer.choices}
    expect.that("texts", len(texts) > 1, "different ones", texts)


@case("chat", "n", "with a stream every choice has its role, its deltas and its end under its index")
async def streamed_choices(probe: Probe) -> None:
    chunks = await probe.chat_chunks(n=2, temperature=1, seed=3)
    for index in (0, 1):
        own = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
        expect.equal(f"roles of choice {index}", [c.delta.role for c in own if c.delta.role], ["assistant"])
        ends = [choice.finish_reason for choice in own if choice.finish_reason]
        expect.equal(f"number of ends of choice {index}", len(ends), 1)
    expect.equal("indices", sorted({choice.index for chunk in chunks for choice in chunk.choices}), [0, 1])


@case("chat", "n", "the choices of one request do not mix", ours=SCRIPT)
async def choices_apart(probe: Probe) -> None:
    answer = await probe.chat(n=4, temperature=1, seed=1)
    said = {probe.own.decode(turn.sampled.token_ids).removesuffix("<|im_end|>") for turn in probe.own.turns}
    expect.equal("texts", {of_choice(choice).text for choice in answer.choices}, said)


@case("chat", "n", "n=129 is refused, as more than 128 are by the protocol's own server", ours=EXTENSION)
async def too_many_choices(probe: Probe) -> None:
    await probe.refused(probe.chat(n=129), param="n")
