"""Chat Completions, the fields that shape an answer: sampling, stops, limits, logprobs."""

from __future__ import annotations

import math
from typing import Any

from ludus.checks.conformance import expect
from ludus.checks.conformance.case import EXTENSION, RECORD, SCRIPT, case
from ludus.checks.conformance.cases.asks import TIME_CALL
from ludus.checks.conformance.cases.chat_tools import TOOLS
from ludus.checks.conformance.probe import Probe
from ludus.checks.conformance.replies import of_choice, of_chunks


async def text_of(probe: Probe, **fields: Any) -> str:
    return of_choice((await probe.chat(**fields)).choices[0]).text


# ---- sampling fields


@case("chat", "sampling fields", "at temperature 0 the same request has the same answer")
async def greedy(probe: Probe) -> None:
    expect.equal("the second answer", await text_of(probe, max_tokens=16), await text_of(probe, max_tokens=16))


@case("chat", "sampling fields", "the same seed gives the same answer")
async def same_seed(probe: Probe) -> None:
    fields = {"temperature": 1, "seed": 11, "max_tokens": 16}
    expect.equal("the second answer", await text_of(probe, **fields), await text_of(probe, **fields))


@case("chat", "sampling fields", "other seeds give other answers")
async def other_seeds(probe: Probe) -> None:
    texts = {await text_of(probe, temperature=1, seed=seed, max_tokens=16) for seed in range(8)}
    expect.that("number of different answers", len(texts) > 1, "more than 1 of 8", len(texts))


@case("chat", "sampling fields", "without a seed two equal requests are drawn apart", ours=RECORD)
async def drawn_seeds(probe: Probe) -> None:
    for _ in range(3):
        await probe.chat(temperature=1)
    seeds = {heard.call.sampling.seed for heard in probe.own.calls}
    expect.equal("number of different seeds", len(seeds), 3)


@case("chat", "sampling fields", "every sampling field of the protocol is taken")
async def all_fields(probe: Probe) -> None:
    fields = {"temperature": 0.7, "top_p": 0.9, "presence_penalty": 0.1, "frequency_penalty": -0.1, "seed": 1}
    expect.text("content", await text_of(probe, **fields))


@case("chat", "sampling fields", "what a request names is what the engine samples with", ours=RECORD)
async def fields_act(probe: Probe) -> None:
    named = {"temperature": 0.7, "top_p": 0.9, "presence_penalty": 0.1, "frequency_penalty": -0.1, "seed": 1}
    more = {"top_k": 40, "min_p": 0.05, "repetition_penalty": 1.1}
    await probe.chat(**named, extra_body=more)
    sampling = probe.own.calls[0].call.sampling
    expect.equal("sampling", {name: getattr(sampling, name) for name in (*named, *more)}, {**named, **more})


@case("chat", "sampling fields", "logit_bias reaches the engine, each token once", ours=RECORD)
async def bias_acts(probe: Probe) -> None:
    await probe.chat(logit_bias={"30": -100, "20": 5})
    expect.equal("logit_bias", probe.own.calls[0].call.sampling.logit_bias, ((20, 5.0), (30, -100.0)))


@case("chat", "sampling fields", "logit_bias is taken")
async def bias(probe: Probe) -> None:
    expect.text("content", await text_of(probe, logit_bias={"5": -100}))


@case("chat", "sampling fields", "the error names the field at fault", ours=EXTENSION)
async def names_field(probe: Probe) -> None:
    for name, value in (("temperature", -1), ("top_p", 2), ("frequency_penalty", 3), ("seed", "one"), ("n", 1.5)):
        await probe.refused(probe.chat(**{name: value}), param=name)


@case("chat", "sampling fields", "null is as if the field were not there")
async def nulls(probe: Probe) -> None:
    fields = dict.fromkeys(("top_p", "stop", "seed", "tools", "logit_bias", "response_format", "user"))
    answer = await probe.post("/chat/completions", {**probe.chat_fields(), **fields})
    expect.equal("status", answer.status_code, 200)


@case("chat", "sampling fields", "sampling that the session pins is told in a header, and is what acts", ours=EXTENSION)
async def pinned(probe: Probe) -> None:
    other = probe.another(pinned=("top_p",))
    raw = await other.openai.chat.completions.with_raw_response.create(**other.chat_fields(top_p=0.5))
    expect.equal("x-ludus-pinned", raw.headers.get("x-ludus-pinned"), "top_p")
    expect.equal("top_p of the engine's call", other.own.calls[0].call.sampling.top_p, 1.0)


# ---- stop


@case("chat", "stop", "an answer ends before its stop string")
async def stop_string(probe: Probe) -> None:
    text = await text_of(probe, stop="e")
    expect.that("the text", "e" not in text, "no 'e' in it", text)


@case("chat", "stop", "several stop strings: none of them is in the answer")
async def stop_list(probe: Probe) -> None:
    text = await text_of(probe, stop=["e", "a", "o", "Q"])
    expect.that("the text", not set("eaoQ") & set(text), "none of e, a, o, Q in it", text)


@case("chat", "stop", "streamed, no part of a stop string leaves")
async def stop_streamed(probe: Probe) -> None:
    probe.script("red green blue white")
    reply = of_chunks(await probe.chat_chunks(stop=[" green blue", "een b"]))
    expect.that("the text", "een b" not in reply.text, "no 'een b' in it", reply.text)


@case("chat", "stop", "the text before the stop string is whole, and nothing after it is there", ours=SCRIPT)
async def stop_exact(probe: Probe) -> None:
    said = "red green blue white green"
    probe.script(said, said)
    fields = {"stop": [" white", "blue w"]}
    whole, streamed = of_choice((await probe.chat(**fields)).choices[0]), of_chunks(await probe.chat_chunks(**fields))
    expect.equal("text", whole.text, "red green ")
    expect.equal("streamed text", streamed.text, "red green ")
    expect.equal("how they ended", (whole.ended, streamed.ended), ("stop", "stop"))


@case("chat", "stop", "text that only begins like a stop string is said", ours=SCRIPT)
async def stop_begun(probe: Probe) -> None:
    probe.script("red green blue", "red green blue")
    expect.equal("text", await text_of(probe, stop=["blues", "green black"]), "red green blue")
    streamed = of_chunks(await probe.chat_chunks(stop=["blues", "green black"]))
    expect.equal("streamed text", streamed.text, "red green blue")


@case("chat", "stop", "a stop string ends the sampling too: no token after it is counted", ours=RECORD)
async def stop_ends(probe: Probe) -> None:
    probe.script("red green blue white black " * 10)
    answer = await probe.chat(stop="blue")
    most = len(probe.own.encode("red green blue"))
    used = answer.usage.completion_tokens
    expect.that("completion_tokens", used <= most, f"at most {most}", used)


@case("chat", "stop", "a token id can end an answer", ours=EXTENSION)
async def stop_id(probe: Probe) -> None:
    probe.script("red green blue")
    last = probe.own.encode(" green")[0]
    answer = await probe.chat(extra_body={"stop_token_ids": [last]})
    expect.equal("text", answer.choices[0].message.content, "red")
    expect.equal("finish_reason", answer.choices[0].finish_reason, "stop")


# ---- limits


@case("chat", "limits", "max_tokens ends an answer: not one token more, and the end is length")
async def max_tokens(probe: Probe) -> None:
    probe.script("red green blue white black")
    answer = await probe.chat(max_tokens=3)
    expect.equal("completion_tokens", answer.usage.completion_tokens, 3)
    expect.equal("finish_reason", answer.choices[0].finish_reason, "length")


@case("chat", "limits", "max_completion_tokens is the same limit under its newer name")
async def max_completion_tokens(probe: Probe) -> None:
    probe.script("red green blue white black")
    answer = await probe.chat(max_completion_tokens=2)
    expect.equal("completion_tokens", answer.usage.completion_tokens, 2)
    expect.equal("finish_reason", answer.choices[0].finish_reason, "length")


@case("chat", "limits", "a limit streamed: the end is length too")
async def limit_streamed(probe: Probe) -> None:
    probe.script("red green blue white black")
    reply = of_chunks(await probe.chat_chunks(max_tokens=3))
    expect.equal("how it ended", reply.ended, "length")


@case("chat", "limits", "an answer that ends a call half-way ends with length, and the text is kept", ours=SCRIPT)
async def cut_call(probe: Probe) -> None:
    probe.script(TIME_CALL)
    num_tokens = len(probe.own.encode(TIME_CALL)) - 6
    answer = await probe.chat(**TOOLS, max_tokens=num_tokens)
    expect.equal("finish_reason", answer.choices[0].finish_reason, "length")


# ---- logprobs


@case("chat", "logprobs", "not asked for, there are none")
async def no_logprobs(probe: Probe) -> None:
    expect.equal("logprobs", (await probe.chat()).choices[0].logprobs, None)


@case("chat", "logprobs", "one entry a token, each a logarithm of a probability")
async def logprobs(probe: Probe) -> None:
    answer = await probe.chat(logprobs=True, max_tokens=8)
    entries, num_tokens = answer.choices[0].logprobs.content, answer.usage.completion_tokens
    # The token that ends an answer has no text, and servers differ in whether it has an entry.
    expect.one_of("number of entries", len(entries), (num_tokens, num_tokens - 1))
    bad = [entry.logprob for entry in entries if not (math.isfinite(entry.logprob) and entry.logprob <= 0)]
    expect.equal("logprobs above 0 or without a value", bad, [])


@case("chat", "logprobs", "the tokens' texts put together begin with the answer's text")
async def token_texts(probe: Probe) -> None:
    answer = await probe.chat(logprobs=True, max_tokens=8)
    together = "".join(entry.token for entry in answer.choices[0].logprobs.content)
    text = answer.choices[0].message.content
    expect.that("the tokens' texts", together.startswith(text), f"beginning with {text!r}", together)


@case("chat", "logprobs", "a token's bytes are its text")
async def token_bytes(probe: Probe) -> None:
    entries = (await probe.chat(logprobs=True, max_tokens=8)).choices[0].logprobs.content
    for entry in entries:
        if entry.bytes is not None:
            expect.equal("bytes as text", bytes(entry.bytes).decode(errors="replace"), entry.token)


@case("chat", "logprobs", "top_logprobs: so many entries a token, the likeliest first")
async def top_logprobs(probe: Probe) -> None:
    entries = (await probe.chat(logprobs=True, top_logprobs=3, max_tokens=8)).choices[0].logprobs.content
    for entry in entries:
        values = [likely.logprob for likely in entry.top_logprobs]
        expect.equal("number of likeliest tokens", len(values), 3)
        expect.equal("their order", values, sorted(values, reverse=True))


@case("chat", "logprobs", "at temperature 0 the sampled token is the likeliest of those told", ours=None)
async def greedy_is_first(probe: Probe) -> None:
    entries = (await probe.chat(logprobs=True, top_logprobs=2, max_tokens=4)).choices[0].logprobs.content
    expect.that("entries", entries, "at least one", entries)
    told = [entry for entry in entries if entry.logprob > entry.top_logprobs[0].logprob + 1e-4]
    expect.equal("tokens likelier than the likeliest", [entry.token for entry in told], [])


@case("chat", "logprobs", "streamed logprobs are those of the answer at once")
async def streamed_logprobs(probe: Probe) -> None:
    fields = {"logprobs": True, "top_logprobs": 1, "max_tokens": 8, "seed": 5}
    whole = (await probe.chat(**fields)).choices[0].logprobs.content
    chunks = await probe.chat_chunks(**fields)
    told = [c.logprobs.content for chunk in chunks for c in chunk.choices if c.logprobs and c.logprobs.content]
    streamed = [entry.token for entries in told for entry in entries]
    expect.equal("tokens", streamed, [entry.token for entry in whole])


@case("chat", "logprobs", "each logprob is the one that is recorded for its token", ours=RECORD)
async def recorded_logprobs(probe: Probe) -> None:
    entries = (await probe.chat(logprobs=True)).choices[0].logprobs.content
    sampled = probe.own.turns[0].sampled
    recorded = [(probe.own.decode([token]), p) for token, p in zip(sampled.token_ids, sampled.logprobs, strict=True)]
    expect.equal("tokens and logprobs", [(entry.token, entry.logprob) for entry in entries], recorded)


@case("chat", "logprobs", "the likeliest tokens told are those that are recorded", ours=RECORD)
async def recorded_top(probe: Probe) -> None:
    entries = (await probe.chat(logprobs=True, top_logprobs=2)).choices[0].logprobs.content
    recorded = [
        [(probe.own.decode([token]), logprob) for token, logprob in likeliest]
        for likeliest in probe.own.turns[0].sampled.top_logprobs
    ]
    told = [[(likely.token, likely.logprob) for likely in entry.top_logprobs] for entry in entries]
    expect.equal("likeliest tokens", told, recorded)


@case("chat", "stop", "an empty stop string is refused", ours=EXTENSION)
async def empty_stop(probe: Probe) -> None:
    await probe.refused(probe.chat(stop=""), param="stop")
