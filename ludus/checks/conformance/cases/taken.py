"""Requests that a server must take: fields, shapes of messages and headers that change no answer, or need not."""

from __future__ import annotations

from functools import partial

from ludus.checks.conformance import expect
from ludus.checks.conformance.asks import ASK, QUESTION, UNICODE, Item, message, user
from ludus.checks.conformance.case import named
from ludus.checks.conformance.expect import over
from ludus.checks.conformance.probe import Probe
from ludus.checks.conformance.words import CHAT, MESSAGES, PENALTIES, RESPONSES, Fields

NULLS = dict.fromkeys(("top_p", "stop", "seed", "tools", "logit_bias", "response_format", "user"))
PARIS = '{"city": "Paris"}'
LOW = {"effort": "low"}
STORED = {"user": "me", "metadata": {"a": "b"}, "store": False, "service_tier": "auto"}
UNSEEN = {"extra_body": {"prompt_cache_key": "k", "safety_identifier": "s"}}
FOREIGN = {"OpenAI-Organization": "org", "OpenAI-Project": "p", "OpenAI-Beta": "x=1", "X-Request-Id": "r1"}
BETA = {"anthropic-beta": "prompt-caching-2024-07-31,token-efficient-tools-2025-02-19"}
MARKED = user([{"type": "text", "text": "Name a colour.", "cache_control": {"type": "ephemeral"}}])
# The protocol wants temperature 1 and room beyond the budget; the stop sequence keeps a real model from using it.
BUDGET = {"temperature": 1, "max_tokens": 1100, "stop_sequences": ["e"]}


def chat_results(*order: int) -> Fields:
    """Two calls, and their results in this order."""
    functions = [{"name": "get_weather", "arguments": PARIS}, {"name": "get_time", "arguments": PARIS}]
    calls = [{"id": f"call_{at}", "type": "function", "function": functions[at]} for at in (0, 1)]
    results = [{"role": "tool", "tool_call_id": f"call_{at}", "content": "18 degrees"} for at in order]
    called = {"role": "assistant", "content": None, "tool_calls": calls}
    return {"messages": [user(QUESTION), called, *results], "tools": CHAT.tools}


def item_result() -> Fields:
    called = {"type": "function_call", "call_id": "call_a", "name": "get_time", "arguments": PARIS}
    result = {"type": "function_call_output", "call_id": "call_a", "output": "noon"}
    return {"input": [*ASK, called, result], "tools": RESPONSES.tools}


def block_results(*results: Item) -> Fields:
    """Calls with these results."""
    ids = [f"toolu_{at}" for at in range(len(results))]
    used = [{"type": "tool_use", "id": one, "name": "get_time", "input": {"city": "Paris"}} for one in ids]
    blocks = [{"type": "tool_result", "tool_use_id": one, **result} for one, result in zip(ids, results, strict=True)]
    return {"messages": [user(QUESTION), message("assistant", used), user(blocks)], "tools": MESSAGES.tools}


# What is taken, by the names of the cases, and the fields of each request.
TAKEN: dict[str, tuple[str, *tuple[Fields, ...]]] = {
    "chat text/developer_message": (
        "The role developer is taken",
        {"messages": [message("developer", "Be brief."), *ASK]},
    ),
    "chat text/history_shapes": (
        "An assistant's text parts and a name are taken back",
        {
            "messages": [
                {**ASK[0], "name": "Ann"},
                message("assistant", [{"type": "text", "text": "Red."}]),
                user("Another one."),
            ]
        },
    ),
    "chat unicode/unicode_prompt": ("Text of many scripts can be asked", {"messages": [user(UNICODE)]}),
    "chat sampling fields/all_fields": (
        "Every sampling field of the protocol is taken",
        {"temperature": 0.7, "top_p": 0.9, **PENALTIES, "seed": 1},
    ),
    "chat sampling fields/bias": ("logit_bias is taken", {"logit_bias": {"5": -100}}),
    "chat sampling fields/nulls": ("Null is as if the field were not there", NULLS),
    "chat structured output/plain_format": ("The type text asks for nothing", {"response_format": {"type": "text"}}),
    "chat reasoning/effort": ("reasoning_effort is taken", {"reasoning_effort": "low"}),
    "chat tools/results": ("Results are taken back, one a call, in any order", chat_results(0, 1), chat_results(1, 0)),
    "chat tools/empty_tools": ("An empty list of tools is no tools", {"tools": []}),
    "chat tools/no_parameters": ("A tool without parameters is taken", {"tools": [CHAT.offer({"name": "get_date"})]}),
    "chat headers/foreign_headers": ("Headers of other services change nothing", {"extra_headers": FOREIGN}),
    "chat headers/harmless_fields": ("Fields that cannot change a token are taken", {**STORED, **UNSEEN}),
    "responses text/roles": (
        "A developer's and a system's message are taken",
        *({"input": [message(role, "Be brief."), *ASK]} for role in ("developer", "system")),
    ),
    "responses tools/output": ("A call and its output are taken back", item_result()),
    "responses reasoning/effort": ("reasoning.effort is taken", {"reasoning": LOW}),
    "messages tools/result_shapes": (
        "Results are taken back: as text, as blocks, as an error, beside text",
        block_results({"content": "noon"}),
        block_results({"content": "noon"}, {"content": [{"type": "text", "text": "noon"}]}),
        block_results({"content": "noon", "is_error": True}),
    ),
    "messages reasoning/budget": (
        "Thinking with a budget is taken",
        {**BUDGET, "thinking": {"type": "enabled", "budget_tokens": 1024}},
    ),
    "messages headers/harmless": (
        "Beta and version headers, cache marks and metadata are taken",
        {"messages": [MARKED], "metadata": {"user_id": "me"}, "extra_headers": BETA},
    ),
}


async def _is_taken(requests: tuple[Fields, ...], probe: Probe) -> None:
    for fields in requests:
        reply = await probe.ask(**fields)
        expect.parts(reply, num_sampled=over(0))
        expect.that("the answer", reply.kinds, "text, thinking or calls", reply)


CASES = tuple(named(name, what, partial(_is_taken, tuple(requests))) for name, (what, *requests) in TAKEN.items())
