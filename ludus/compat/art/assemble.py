"""The body of a chat completion, put together from the chunks in which it was streamed.

Knows: OpenAI's chunks.  Knows not: HTTP, who streamed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from ludus.http.sse import DONE, whole_data

# Of a delta, texts that grow; everything else is said once.
_GROWING = ("content", "reasoning_content", "reasoning", "refusal")


def read_answer(body: bytes, content_type: str) -> dict[str, Any] | None:
    """The answer as it is without streaming. None: it is no chat completion, or it broke off."""
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
    """One body of all chunks; choices by index."""
    whole: dict[str, Any] = {}
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        whole.update({key: value for key, value in chunk.items() if key != "choices" and value is not None})
        for part in chunk.get("choices") or ():
            choice = choices.setdefault(part["index"], {"message": {"role": "assistant", "content": None}})
            _add_delta(choice["message"], part.get("delta") or {})
            _add_logprobs(choice, part.get("logprobs"))
            rest = {key: value for key, value in part.items() if key not in ("delta", "logprobs")}
            choice.update({key: value for key, value in rest.items() if value is not None})
    return {**whole, "choices": [choices[index] for index in sorted(choices)]}


def _add_delta(message: dict[str, Any], delta: Mapping[str, Any]) -> None:
    for key, value in delta.items():
        if value is None:
            continue
        if key in _GROWING:
            message[key] = (message.get(key) or "") + value
        elif key == "tool_calls":
            for call in value:
                _add_call(message.setdefault("tool_calls", []), call)
        else:
            message[key] = value


def _add_call(calls: list[dict[str, Any]], part: Mapping[str, Any]) -> None:
    index = part.get("index", len(calls))
    while len(calls) <= index:
        calls.append({"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
    call, function = calls[index], part.get("function") or {}
    call["id"] = part.get("id") or call["id"]
    call["function"]["name"] = function.get("name") or call["function"]["name"]
    call["function"]["arguments"] += function.get("arguments") or ""


def _add_logprobs(choice: dict[str, Any], logprobs: Mapping[str, Any] | None) -> None:
    if logprobs and logprobs.get("content"):
        known = choice.setdefault("logprobs", {"content": []})
        known["content"].extend(logprobs["content"])
