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


@case("chat", "sampling fields")
async def greedy(probe: Probe) -> None:
    """At temperature 0 the same request has the same answer."""
    expect.equal("the second answer", await text_of(probe, max_tokens=16), await text_of(probe, max_tokens=16))


@case("chat", "sampling fields")
async def other_seeds(probe: Probe) -> None:
    """Other seeds give other answers."""
    texts = {await text_of(probe, temperature=1, seed=seed, max_tokens=16) for seed in range(8)}
    expect.that("number of different answers", len(texts) > 1, "more than 1 of 8", len(texts))


@case("chat", "sampling fields", ours=RECORD)
async def drawn_seeds(probe: Probe) -> None:
    """Without a seed two equal requests are drawn apart."""
    for _ in range(3):
        await probe.chat(temperature=1)
    seeds = {observed.call.sampling.seed for observed in probe.local.calls}
    expect.equal("number of different seeds", len(seeds), 3)


@case("chat", "sampling fields")
async def all_fields(probe: Probe) -> None:
    """Every sampling field of the protocol is taken."""
    fields = {"temperature": 0.7, "top_p": 0.9, "presence_penalty": 0.1, "frequency_penalty": -0.1, "seed": 1}
    expect.text("content", await text_of(probe, **fields))


@case("chat", "sampling fields", ours=RECORD)
async def bias_acts(probe: Probe) -> None:
    """logit_bias reaches the engine, each token once."""
    await probe.chat(logit_bias={"30": -100, "20": 5})
    expect.equal("logit_bias", probe.local.calls[0].call.sampling.logit_bias, ((20, 5.0), (30, -100.0)))


@case("chat", "sampling fields")
async def bias(probe: Probe) -> None:
    """logit_bias is taken."""
    expect.text("content", await text_of(probe, logit_bias={"5": -100}))


@case("chat", "sampling fields", ours=EXTENSION)
async def names_field(probe: Probe) -> None:
    """The error names the field at fault."""
    for name, value in (("temperature", -1), ("top_p", 2), ("frequency_penalty", 3), ("seed", "one"), ("n", 1.5)):
        await probe.refused(probe.chat(**{name: value}), param=name)


@case("chat", "sampling fields")
async def nulls(probe: Probe) -> None:
    """Null is as if the field were not there."""
    fields = dict.fromkeys(("top_p", "stop", "seed", "tools", "logit_bias", "response_format", "user"))
    answer = await probe.post("/chat/completions", {**probe.chat_fields(), **fields})
    expect.equal("status", answer.status_code, 200)


@case("chat", "sampling fields", ours=EXTENSION)
async def pinned(probe: Probe) -> None:
    """Sampling that the session pins is reported in a header, and is what acts."""
    other = probe.another(pinned=("top_p",))
    raw = await other.openai.chat.completions.with_raw_response.create(**other.chat_fields(top_p=0.5))
    expect.equal("x-ludus-pinned", raw.headers.get("x-ludus-pinned"), "top_p")
    expect.equal("top_p of the engine's call", other.local.calls[0].call.sampling.top_p, 1.0)


# ---- stop


@case("chat", "stop")
async def stop_list(probe: Probe) -> None:
    """Several stop strings: none of them is in the answer."""
    text = await text_of(probe, stop=["e", "a", "o", "Q"])
    expect.that("the text", not set("eaoQ") & set(text), "none of e, a, o, Q in it", text)


@case("chat", "stop")
async def stop_streamed(probe: Probe) -> None:
    """Streamed, no part of a stop string leaves."""
    probe.script("red green blue white")
    reply = of_chunks(await probe.chat_chunks(stop=[" green blue", "een b"]))
    expect.that("the text", "een b" not in reply.text, "no 'een b' in it", reply.text)


@case("chat", "stop", ours=SCRIPT)
async def stop_exact(probe: Probe) -> None:
    """The text before the stop string is whole, and nothing after it is there."""
    said = "red green blue white green"
    probe.script(said, said)
    fields = {"stop": [" white", "blue w"]}
    whole, streamed = of_choice((await probe.chat(**fields)).choices[0]), of_chunks(await probe.chat_chunks(**fields))
    expect.equal("text", whole.text, "red green ")
    expect.equal("streamed text", streamed.text, "red green ")
    expect.equal("how they ended", (whole.ended, streamed.ended), ("stop", "stop"))


@case("chat", "stop", ours=SCRIPT)
async def stop_begun(probe: Probe) -> None:
    """Text that only begins like a stop string is said."""
    probe.script("red green blue", "red green blue")
    expect.equal("text", await text_of(probe, stop=["blues", "green black"]), "red green blue")
    streamed = of_chunks(await probe.chat_chunks(stop=["blues", "green black"]))
    expect.equal("streamed text", streamed.text, "red green blue")


@case("chat", "stop", ours=RECORD)
async def stop_ends(probe: Probe) -> None:
    """A stop string ends the sampling too: no token after it is counted."""
    probe.script("red green blue white black " * 10)
    answer = await probe.chat(stop="blue")
    most = len(probe.local.encode("red green blue"))
    used = answer.usage.completion_tokens
    expect.that("completion_tokens", used <= most, f"at most {most}", used)


@case("chat", "stop", ours=EXTENSION)
async def stop_id(probe: Probe) -> None:
    """A token id can end an answer."""
    probe.script("red green blue")
    last = probe.local.encode(" green")[0]
    answer = await probe.chat(extra_body={"stop_token_ids": [last]})
    expect.equal("text", answer.choices[0].message.content, "red")
    expect.equal("finish_reason", answer.choices[0].finish_reason, "stop")


# ---- limits


@case("chat", "limits")
async def max_completion_tokens(probe: Probe) -> None:
    """max_completion_tokens is the same limit under its newer name."""
    probe.script("red green blue white black")
    answer = await probe.chat(max_completion_tokens=2)
    expect.equal("completion_tokens", answer.usage.completion_tokens, 2)
    expect.equal("finish_reason", answer.choices[0].finish_reason, "length")


@case("chat", "limits", ours=SCRIPT)
async def cut_call(probe: Probe) -> None:
    """An answer that ends a call half-way ends with length, and the text is kept."""
    probe.script(TIME_CALL)
    num_tokens = len(probe.local.encode(TIME_CALL)) - 6
    answer = await probe.chat(**TOOLS, max_tokens=num_tokens)
    expect.equal("finish_reason", answer.choices[0].finish_reason, "length")


# ---- logprobs


@case("chat", "logprobs")
async def no_logprobs(probe: Probe) -> None:
    """Not asked for, there are none."""
    expect.equal("logprobs", (await probe.chat()).choices[0].logprobs, None)


@case("chat", "logprobs")
async def logprobs(probe: Probe) -> None:
    """One entry a token, each a logarithm of a probability."""
    answer = await probe.chat(logprobs=True, max_tokens=8)
    entries, num_tokens = answer.choices[0].logprobs.content, answer.usage.completion_tokens
    # The token that ends an answer has no text, and servers differ in whether it has an entry.
    expect.one_of("number of entries", len(entries), (num_tokens, num_tokens - 1))
    bad = [entry.logprob for entry in entries if not (math.isfinite(entry.logprob) and entry.logprob <= 0)]
    expect.equal("logprobs above 0 or without a value", bad, [])


@case("chat", "logprobs")
async def token_texts(probe: Probe) -> None:
    """The tokens' texts put together begin with the answer's text."""
    answer = await probe.chat(logprobs=True, max_tokens=8)
    together = "".join(entry.token for entry in answer.choices[0].logprobs.content)
    text = answer.choices[0].message.content
    expect.that("the tokens' texts", together.startswith(text), f"beginning with {text!r}", together)


@case("chat", "logprobs")
async def token_bytes(probe: Probe) -> None:
    """A token's bytes are its text."""
    entries = (await probe.chat(logprobs=True, max_tokens=8)).choices[0].logprobs.content
    for entry in entries:
        if entry.bytes is not None:
            expect.equal("bytes as text", bytes(entry.bytes).decode(errors="replace"), entry.token)


@case("chat", "logprobs")
async def top_logprobs(probe: Probe) -> None:
    """top_logprobs: so many entries a token, the likeliest first."""
    entries = (await probe.chat(logprobs=True, top_logprobs=3, max_tokens=8)).choices[0].logprobs.content
    for entry in entries:
        values = [likely.logprob for likely in entry.top_logprobs]
        expect.equal("number of likeliest tokens", len(values), 3)
        expect.equal("their order", values, sorted(values, reverse=True))


@case("chat", "logprobs", ours=None)
async def greedy_is_first(probe: Probe) -> None:
    """At temperature 0 the sampled token is the likeliest of those told."""
    entries = (await probe.chat(logprobs=True, top_logprobs=2, max_tokens=4)).choices[0].logprobs.content
    expect.that("entries", entries, "at least one", entries)
    told = [entry for entry in entries if entry.logprob > entry.top_logprobs[0].logprob + 1e-4]
    expect.equal("tokens likelier than the likeliest", [entry.token for entry in told], [])


@case("chat", "logprobs")
async def streamed_logprobs(probe: Probe) -> None:
    """Streamed logprobs are those of the answer at once."""
    fields = {"logprobs": True, "top_logprobs": 1, "max_tokens": 8, "seed": 5}
    whole = (await probe.chat(**fields)).choices[0].logprobs.content
    chunks = await probe.chat_chunks(**fields)
    told = [c.logprobs.content for chunk in chunks for c in chunk.choices if c.logprobs and c.logprobs.content]
    streamed = [entry.token for entries in told for entry in entries]
    expect.equal("tokens", streamed, [entry.token for entry in whole])


@case("chat", "logprobs", ours=RECORD)
async def recorded_logprobs(probe: Probe) -> None:
    """Each logprob is the one that is recorded for its token."""
    entries = (await probe.chat(logprobs=True)).choices[0].logprobs.content
    sampled = probe.local.turns[0].sampled
    recorded = [(probe.local.decode([token]), p) for token, p in zip(sampled.token_ids, sampled.logprobs, strict=True)]
    expect.equal("tokens and logprobs", [(entry.token, entry.logprob) for entry in entries], recorded)


@case("chat", "logprobs", ours=RECORD)
async def recorded_top(probe: Probe) -> None:
    """The likeliest tokens told are those that are recorded."""
    entries = (await probe.chat(logprobs=True, top_logprobs=2)).choices[0].logprobs.content
    recorded = [
        [(probe.local.decode([token]), logprob) for token, logprob in likeliest]
        for likeliest in probe.local.turns[0].sampled.top_logprobs
    ]
    told = [[(likely.token, likely.logprob) for likely in entry.top_logprobs] for entry in entries]
    expect.equal("likeliest tokens", told, recorded)


@case("chat", "stop", ours=EXTENSION)
async def empty_stop(probe: Probe) -> None:
    """An empty stop string is refused."""
    await probe.refused(probe.chat(stop=""), param="stop")
