"""Assembles the body of a chat completion from its streamed chunks.

Knows: OpenAI's chunks.  Knows not: HTTP, which server streamed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from ludus.http.sse import DONE, whole_data

# Texts that are concatenated over chunks; everything else is sent once.
_GROWING = ("content", "reasoning_content", "reasoning", "refusal", "arguments")
# Lists whose entries are sent by index, and the initial value of an entry.
_BY_INDEX: Mapping[str, Mapping[str, Any]] = {
    "choices": {},
    "tool_calls": {"id": "", "type": "function", "function": {"name": "", "arguments": ""}},
}


def read_answer(body: bytes, content_type: str) -> dict[str, Any] | None:
    """The answer in its unstreamed form. None: it is no chat completion, or is incomplete."""
    try:
        if "event-stream" not in content_type:
            found = json.loads(body)
        else:
            found = assemble(json.loads(data) for data in whole_data(body) if data != DONE)
            if not all("finish_reason" in choice for choice in found["choices"] or [{}]):
                return None
    except ValueError:
        return None
    return found if isinstance(found, dict) and isinstance(found.get("choices"), list) else None


def assemble(chunks: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The body assembled from all chunks, with choices ordered by index."""
    whole: dict[str, Any] = {"choices": {}}
    for chunk in chunks:
        whole = _grown(whole, chunk)
    return {**whole, "choices": [_choice(choice) for _, choice in sorted(whole["choices"].items())]}


def _grown(known: Mapping[str, Any], part: Mapping[str, Any]) -> dict[str, Any]:
    """`known` extended by `part`; lists sent by index are mappings until all chunks were read."""
    found = dict(known)
    for key, value in part.items():
        before = found.get(key)
        if key in _BY_INDEX:
            found[key] = dict(before or {})
            for each in value or ():
                index = each.get("index", len(found[key]))
                found[key][index] = _grown(found[key].get(index, _BY_INDEX[key]), each)
        elif isinstance(value, Mapping):
            found[key] = _grown(before or {}, value)
        elif isinstance(value, list) or (isinstance(value, str) and key in _GROWING):
            found[key] = value if before is None else before + value
        elif value is not None and (value != "" or before is None):
            found[key] = value
    return found


def _choice(grown: Mapping[str, Any]) -> dict[str, Any]:
    choice = {key: value for key, value in grown.items() if key != "delta"}
    message = {"role": "assistant", "content": None, **grown.get("delta", {})}
    if "tool_calls" in message:
        calls = (call for _, call in sorted(message["tool_calls"].items()))
        message["tool_calls"] = [{key: call[key] for key in call if key != "index"} for call in calls]
    return {**choice, "message": message}
