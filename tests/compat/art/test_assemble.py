"""Streamed answers put together: the same body as without streaming."""

from __future__ import annotations

import json
from typing import Any

from ludus.compat.art.assemble import read_answer

STREAM = "text/event-stream; charset=utf-8"


def chunk(index: int, delta: dict[str, Any], **choice: Any) -> dict[str, Any]:
    return {"id": "c", "model": "m", "choices": [{"index": index, "delta": delta, "finish_reason": None, **choice}]}


def stream(*chunks: dict[str, Any]) -> bytes:
    return b"".join(f"data: {json.dumps(each)}\n\n".encode() for each in chunks) + b": alive\n\ndata: [DONE]\n\n"


def test_chunks_are_one_answer() -> None:
    """Texts grow, calls are filled in by index, what is said once stays: finish reason, turn, usage, logprobs."""
    first = {"index": 0, "id": "call", "type": "function", "function": {"name": "add", "arguments": ""}}
    body = stream(
        chunk(0, {"role": "assistant"}),
        chunk(1, {"role": "assistant"}),
        chunk(1, {"content": "é"}, logprobs={"content": [{"token": "é"}]}),
        chunk(0, {"reasoning_content": "h"}),
        chunk(0, {"reasoning_content": "m"}),
        chunk(0, {"tool_calls": [first]}),
        chunk(0, {"tool_calls": [{"index": 0, "function": {"arguments": '{"a"'}}]}),
        chunk(0, {"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}]}),
        chunk(0, {}, finish_reason="tool_calls", turn_id="t0"),
        chunk(1, {}, finish_reason="stop", turn_id="t1"),
        {"id": "c", "choices": [], "usage": {"completion_tokens": 9}},
    )
    answer = read_answer(body, STREAM)
    assert answer is not None and answer["usage"] == {"completion_tokens": 9}
    called, spoken = answer["choices"]
    call = {"id": "call", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    assert called["message"] == {
        "role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [call],
    }  # fmt: skip
    assert (called["finish_reason"], called["turn_id"]) == ("tool_calls", "t0")
    assert (spoken["message"]["content"], spoken["turn_id"]) == ("é", "t1")
    assert spoken["logprobs"] == {"content": [{"token": "é"}]}


def test_what_is_no_answer() -> None:
    """A broken stream, another body and a list are nothing."""
    assert read_answer(b'data: {"cho', STREAM) is None
    assert read_answer(stream(chunk(0, {"content": "x"})) + b'data: {"cho', STREAM) is None
    assert read_answer(b"<html>", "text/html") is None
    assert read_answer(b'{"object": "list"}', "application/json") is None
    whole = {"choices": [{"message": {"content": "x"}}]}
    assert read_answer(json.dumps(whole).encode(), "application/json") == whole
