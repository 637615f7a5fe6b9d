"""Chat Completions, the fields that shape an answer: sampling, stops, limits, logprobs, JSON, thinking."""

from __future__ import annotations

import asyncio
from typing import Any

from ludus.checks.conformance import expect
from ludus.checks.conformance.asks import COLOURS, POINT, THOUGHT, TIME_CALL, check_point, user
from ludus.checks.conformance.case import EXTENSION, RECORD, SCRIPT, case
from ludus.checks.conformance.cases.chat_tools import TOOLS
from ludus.checks.conformance.expect import at_most, containing, ending, over, without
from ludus.checks.conformance.probe import Probe
from ludus.checks.conformance.words import chat_schema

CLOSED_THINKING = "<think>\n\n</think>\n\n"


# ---- sampling fields


@case("chat", "sampling fields")
async def greedy(probe: Probe) -> None:
    """At temperature 0 the same request has the same answer."""
    first, second = [(await probe.ask(max_tokens=16)).text for _ in range(2)]
    expect.equal("the second answer", second, first)


@case("chat", "sampling fields")
async def other_seeds(probe: Probe) -> None:
    """Other seeds give other answers."""
    texts = {(await probe.ask(temperature=1, seed=seed, max_tokens=16)).text for seed in range(8)}
    expect.equal("number of different answers", len(texts), over(1))


@case("chat", "sampling fields", ours=RECORD)
async def drawn_seeds(probe: Probe) -> None:
    """Without a seed two equal requests are drawn apart."""
    await asyncio.gather(*(probe.ask(temperature=1) for _ in range(3)))
    expect.equal("number of different seeds", len({observed.call.sampling.seed for observed in probe.local.calls}), 3)


@case("chat", "sampling fields", ours=RECORD)
async def bias_acts(probe: Probe) -> None:
    """logit_bias reaches the engine, each token once."""
    await probe.ask(logit_bias={"30": -100, "20": 5})
    expect.parts(probe.local.sampling, logit_bias=((20, 5.0), (30, -100.0)))


@case("chat", "sampling fields", ours=EXTENSION)
async def names_field(probe: Probe) -> None:
    """The error names the field at fault."""
    for name, value in (("temperature", -1), ("top_p", 2), ("frequency_penalty", 3), ("seed", "one"), ("n", 1.5)):
        await probe.refused(probe.ask(**{name: value}), param=name)


@case("chat", "sampling fields", ours=EXTENSION)
async def pinned(probe: Probe) -> None:
    """Sampling that the session pins is reported in a header, and is what acts."""
    other = probe.another(pinned=("top_p",))
    expect.parts((await other.post(top_p=0.5)).headers, **{"x-ludus-pinned": "top_p"})
    expect.parts(other.local.sampling, top_p=1.0)


# ---- stop


@case("chat", "stop")
async def stop_list(probe: Probe) -> None:
    """Several stop strings: none of them is in the answer."""
    expect.parts(await probe.ask(stop=["e", "a", "o", "Q"]), text=without("e", "a", "o", "Q"))


@case("chat", "stop")
async def stop_streamed(probe: Probe) -> None:
    """Streamed, no part of a stop string leaves."""
    reply = await probe.stream("red green blue white", stop=[" green blue", "een b"])
    expect.parts(reply, text=without("een b"))


@case("chat", "stop", ours=SCRIPT)
async def stop_exact(probe: Probe) -> None:
    """The text before the stop string is whole, and nothing after it is there."""
    reply = await probe.both("red green blue white green", stop=[" white", "blue w"])
    expect.parts(reply, text="red green ", ended="stop")


@case("chat", "stop", ours=SCRIPT)
async def stop_begun(probe: Probe) -> None:
    """Text that only begins like a stop string stays."""
    reply = await probe.both("red green blue", stop=["blues", "green black"])
    expect.parts(reply, text="red green blue")


@case("chat", "stop", ours=RECORD)
async def stop_ends(probe: Probe) -> None:
    """A stop string ends the sampling too: no token after it is counted."""
    reply = await probe.ask(f"{COLOURS} " * 10, stop="blue")
    expect.parts(reply, num_sampled=at_most(len(probe.local.encode("red green blue"))))


@case("chat", "stop", ours=EXTENSION)
async def stop_id(probe: Probe) -> None:
    """A token id can end an answer."""
    last = probe.local.encode(" green")[0]
    reply = await probe.ask("red green blue", extra_body={"stop_token_ids": [last]})
    expect.parts(reply, text="red", ended="stop")


# ---- limits


@case("chat", "limits")
async def max_completion_tokens(probe: Probe) -> None:
    """max_completion_tokens is the same limit under its newer name."""
    expect.parts(await probe.ask(COLOURS, max_completion_tokens=2), num_sampled=2, ended="length")


@case("chat", "limits")
async def long_prompt(probe: Probe) -> None:
    """A prompt beyond the context is refused."""
    await probe.refused(probe.ask(messages=[user("red green " * 200_000)]))


@case("chat", "limits", ours=SCRIPT)
async def cut_call(probe: Probe) -> None:
    """An answer that ends a call half-way ends with length, and the text is kept."""
    num_tokens = len(probe.local.encode(TIME_CALL)) - 6
    expect.parts(await probe.ask(TIME_CALL, **TOOLS, max_tokens=num_tokens), ended="length")


# ---- logprobs


async def entries_of(probe: Probe, **fields: Any) -> tuple[list[Any], Any]:
    """The logprobs of an answer, a token each, and the answer."""
    answer = await probe.answer(**{"logprobs": True, "max_tokens": 8, **fields})
    return answer.choices[0].logprobs.content, answer


@case("chat", "logprobs")
async def no_logprobs(probe: Probe) -> None:
    """Not asked for, there are none."""
    expect.parts((await probe.answer()).choices[0], logprobs=None)


@case("chat", "logprobs")
async def logprobs(probe: Probe) -> None:
    """One entry a token, each a logarithm of a probability."""
    entries, answer = await entries_of(probe)
    num_tokens = answer.usage.completion_tokens
    # The token that ends an answer has no text, and servers differ in whether it has an entry.
    expect.equal("number of entries", len(entries), expect.one_of(num_tokens, num_tokens - 1))
    expect.equal("logprobs", [entry.logprob for entry in entries], expect.LOGPROBS)


@case("chat", "logprobs")
async def token_texts(probe: Probe) -> None:
    """The tokens' texts put together begin with the answer's text."""
    entries, answer = await entries_of(probe)
    together = "".join(entry.token for entry in entries)
    expect.equal("the tokens' texts", together, expect.beginning(answer.choices[0].message.content))


@case("chat", "logprobs")
async def token_bytes(probe: Probe) -> None:
    """A token's bytes are its text."""
    for entry in (await entries_of(probe))[0]:
        if entry.bytes is not None:
            expect.equal("bytes as text", bytes(entry.bytes).decode(errors="replace"), entry.token)


@case("chat", "logprobs")
async def top_logprobs(probe: Probe) -> None:
    """top_logprobs: so many entries a token, the likeliest first."""
    for entry in (await entries_of(probe, top_logprobs=3))[0]:
        values = [likely.logprob for likely in entry.top_logprobs]
        expect.equal("number of likeliest tokens", len(values), 3)
        expect.equal("their order", values, sorted(values, reverse=True))


@case("chat", "logprobs")
async def greedy_is_first(probe: Probe) -> None:
    """At temperature 0 the sampled token is the likeliest of those beside it."""
    entries, _ = await entries_of(probe, top_logprobs=2, max_tokens=4)
    expect.equal("entries", entries, expect.FULL)
    likelier = [entry.token for entry in entries if entry.logprob > entry.top_logprobs[0].logprob + 1e-4]
    expect.equal("tokens likelier than the likeliest", likelier, [])


@case("chat", "logprobs")
async def streamed_logprobs(probe: Probe) -> None:
    """Streamed logprobs are those of the answer at once."""
    fields = {"logprobs": True, "top_logprobs": 1, "max_tokens": 8, "seed": 5}
    whole, _ = await entries_of(probe, **fields)
    lists = [c.logprobs.content or () for chunk in await probe.events(**fields) for c in chunk.choices if c.logprobs]
    streamed = [entry.token for entries in lists for entry in entries]
    expect.equal("tokens", streamed, [entry.token for entry in whole])


@case("chat", "logprobs", ours=RECORD)
async def recorded_logprobs(probe: Probe) -> None:
    """Each logprob is the one that is recorded for its token."""
    entries, _ = await entries_of(probe, max_tokens=100)
    sampled = probe.local.turns[0].sampled
    recorded = [(probe.local.decode([token]), p) for token, p in zip(sampled.token_ids, sampled.logprobs, strict=True)]
    expect.equal("tokens and logprobs", [(entry.token, entry.logprob) for entry in entries], recorded)


@case("chat", "logprobs", ours=RECORD)
async def recorded_top(probe: Probe) -> None:
    """The likeliest tokens are those that are recorded."""
    entries, _ = await entries_of(probe, top_logprobs=2, max_tokens=100)
    top = probe.local.turns[0].sampled.top_logprobs
    recorded = [[(probe.local.decode([token]), logprob) for token, logprob in likeliest] for likeliest in top]
    shown = [[(likely.token, likely.logprob) for likely in entry.top_logprobs] for entry in entries]
    expect.equal("likeliest tokens", shown, recorded)


# ---- structured output


@case("chat", "structured output")
async def schema_streamed(probe: Probe) -> None:
    """json_schema streamed: the deltas add up to JSON that fits."""
    check_point((await probe.stream(**probe.words.formed(POINT))).text)


@case("chat", "structured output", ours=RECORD)
async def grammars(probe: Probe) -> None:
    """A constrained answer is drawn under a grammar, a free one is not."""
    for form in (chat_schema(POINT), {"type": "text"}):
        await probe.ask(response_format=form)
    held = [observed.call.sampling.grammar is not None for observed in probe.local.calls]
    expect.equal("calls with a grammar", held, [True, False])


# ---- reasoning


@case("chat", "reasoning", ours=SCRIPT)
async def thinking_streamed(probe: Probe) -> None:
    """Streamed thinking comes before the text and adds up to the same."""
    expect.parts(await probe.both(THOUGHT), kinds=["thinking", "text"])


@case("chat", "reasoning", ours=SCRIPT)
async def call_in_thinking(probe: Probe) -> None:
    """A call inside thinking is no call."""
    reply = await probe.both(f"<think>\nPerhaps {TIME_CALL}?\n</think>\n\nNo.", **TOOLS)
    expect.parts(reply, calls=[], text="No.", reasoning=containing("get_time"))


@case("chat", "reasoning", ours=SCRIPT)
async def call_after_thinking(probe: Probe) -> None:
    """A call after thinking is a call."""
    reply = await probe.both(f"<think>\nI ask.\n</think>\n\n{TIME_CALL}", **TOOLS)
    expect.parts(reply, names=["get_time"], ended="tool_calls")


@case("chat", "reasoning", ours=SCRIPT)
async def no_thinking(probe: Probe) -> None:
    """A model that does not think has no thinking in its answer."""
    reply = await probe.ask("It rains.")
    expect.equal("reasoning_content", (reply.raw.choices[0].message.model_extra or {}).get("reasoning_content"), None)


@case("chat", "reasoning", ours=RECORD)
async def no_effort(probe: Probe) -> None:
    """reasoning_effort none closes the thinking where the template can."""
    await probe.ask(reasoning_effort="none")
    expect.equal("the prompt", probe.local.prompt_text(), ending(CLOSED_THINKING))


@case("chat", "reasoning", ours=RECORD)
async def template_kwargs(probe: Probe) -> None:
    """chat_template_kwargs reach the template."""
    await probe.ask(extra_body={"chat_template_kwargs": {"enable_thinking": False}})
    expect.equal("the prompt", probe.local.prompt_text(), ending(CLOSED_THINKING))
