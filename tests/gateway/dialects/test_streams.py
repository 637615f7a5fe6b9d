"""In every dialect, whatever a reply is made of, a stream adds up to the body that is sent at once."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ludus.gateway.dialects.base import ReadMessages
from ludus.gateway.dialects.table import DIALECTS
from ludus.text.parsers.base import Delta
from ludus.types import Sampling
from tests.gateway.dialects.replies import NUM_PROMPT_TOKENS, answer_of, events, replies

ASK = [{"role": "user", "content": "Guess."}]
BODIES: dict[str, list[dict[str, Any]]] = {
    "chat": [{"messages": ASK}, {"messages": ASK, "logprobs": True, "top_logprobs": 2}],
    "responses": [
        {"input": "Guess."},
        {"input": "Guess.", "include": ["message.output_text.logprobs"], "top_logprobs": 2},
        {"input": "Guess.", "reasoning": {"summary": "auto", "effort": "low"}},
    ],
    "messages": [{"messages": ASK, "max_tokens": 9}],
}
ends = st.sampled_from(
    [{"stop_reason": "stop"}, {"stop_reason": "length"}, {"stop_reason": "stop", "stop_string": "END"}]
)


def both(name: str, body: dict[str, Any], deltas: tuple[Delta, ...], **options: Any) -> tuple[Any, list[Any]]:
    """The body at once, and the events of the stream."""
    dialect = DIALECTS[name]
    parsed = dialect.parse(body, Sampling(), ReadMessages())
    finished = answer_of(deltas, **options)
    writer = dialect.writer(parsed, "tiny", 12.0)
    raw = writer.start(("chatcmpl-1",), NUM_PROMPT_TOKENS)
    for delta in deltas if options.get("has_grown", True) else ():
        raw += writer.delta(0, delta)
    return dialect.response(finished, parsed, "tiny"), events(raw + writer.finish(finished))


@given(replies(), ends, st.sampled_from(BODIES["chat"]), st.booleans())
def test_chat(deltas: tuple[Delta, ...], end: Any, body: Any, has_grown: bool) -> None:
    """Text, thinking and calls of the chunks are the message; the rest of the choice comes with the last chunk."""
    whole, [*written, done] = both("chat", body, deltas, has_grown=has_grown, **end)
    message: dict[str, Any] = {"content": None, "refusal": None}
    calls: dict[int, Any] = {}
    for chunk in written:
        delta = chunk["choices"][0]["delta"]
        for call in delta.pop("tool_calls", ()):
            known = calls.setdefault(call.pop("index"), {"function": {"arguments": ""}})
            call["function"]["arguments"] = known["function"]["arguments"] + call["function"]["arguments"]
            calls[max(calls)] = {**known, **call, "function": {**known["function"], **call["function"]}}
        for field, text in delta.items():
            message[field] = (message.get(field) or "") + text
    message |= {"tool_calls": [calls[index] for index in sorted(calls)]} if calls else {}
    [choice] = whole["choices"]
    assert done == "[DONE]" and choice["message"].pop("content") == (message.pop("content") or (None if calls else ""))
    assert choice.pop("message") == message
    assert {field: written[-1]["choices"][0][field] for field in choice} == choice


@given(replies(), ends, st.sampled_from(BODIES["responses"]), st.booleans())
def test_responses(deltas: tuple[Delta, ...], end: Any, body: Any, has_grown: bool) -> None:
    """The last event holds the body; so do the finished items, and the deltas make the text of each."""
    whole, written = both("responses", body, deltas, has_grown=has_grown, **end)
    assert [each["sequence_number"] for each in written] == list(range(len(written)))
    assert written[-1]["type"] == f"response.{whole['status']}"
    assert written[-1]["response"] == whole
    texts: dict[int, str] = {}
    for each in written:
        if each["type"].endswith(".delta"):
            texts[each["output_index"]] = texts.get(each["output_index"], "") + each["delta"]
    items = [each["item"] for each in written if each["type"] == "response.output_item.done"]
    assert [_without_logprobs(item) for item in items] == [_without_logprobs(item) for item in whole["output"]]
    for idx, item in enumerate(whole["output"]):
        parts = item.get("content") or item.get("summary") or [{"text": item.get("arguments")}]
        assert texts.get(idx, "") == parts[0]["text"]


@given(replies(), ends, st.booleans())
def test_messages(deltas: tuple[Delta, ...], end: Any, has_grown: bool) -> None:
    """Blocks open, grow and close one after the other and are the content; the ends of the events are the rest."""
    whole, written = both("messages", BODIES["messages"][0], deltas, has_grown=has_grown, **end)
    message, open_idx = written[0]["message"], None
    for each in written[1:]:
        if each["type"] == "content_block_start":
            assert open_idx is None and each["index"] == len(message["content"])
            open_idx, grown = each["index"], ""
            message["content"].append(each["content_block"])
        elif each["type"] == "content_block_delta":
            assert each["index"] == open_idx
            [kind] = set(each["delta"]) - {"type"}
            if kind == "signature":
                message["content"][-1]["signature"] = each["delta"]["signature"]
            else:
                grown += each["delta"][kind]
        elif each["type"] == "content_block_stop":
            block, open_idx = message["content"][-1], None
            name = {"text": "text", "thinking": "thinking", "tool_use": "input"}[block["type"]]
            block[name] = json.loads(grown or "{}") if name == "input" else grown
        elif each["type"] == "message_delta":
            message |= each["delta"] | {"usage": each["usage"]}
    assert [each["type"] for each in written[:2]] == ["message_start", "ping"]
    assert written[-1]["type"] == "message_stop" and open_idx is None
    assert message == whole


@given(replies(calls=False), st.booleans(), st.booleans(), st.booleans())
def test_completions(deltas: tuple[Delta, ...], echo: bool, has_grown: bool, logprobs: bool) -> None:
    """The text of the chunks is the text, the prompt before it where it is echoed."""
    body = {"prompt": "Once", "echo": echo, "logprobs": 1 if logprobs and not echo else None}
    whole, [*written, done] = both("completions", body, deltas, has_grown=has_grown)
    [choice] = whole["choices"]
    assert done == "[DONE]"
    assert choice.pop("text") == "".join(chunk["choices"][0].pop("text") for chunk in written)
    assert written[-1]["choices"] == [choice]


def _without_logprobs(item: Any) -> Any:
    """A text that something follows is closed before the logprobs are known."""
    parts = [{name: value for name, value in part.items() if name != "logprobs"} for part in item.get("content", ())]
    return {**item, "content": parts}
