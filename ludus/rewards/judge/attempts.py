"""Renders attempts at one task as tagged text for a judge, and parses that text again.

Knows: messages as plain JSON, which of them attempts have in common, how long a text is.  Knows not: scores, HTTP.
Invariants: text inside an attempt cannot close its tag, whatever an agent wrote; `read_attempts(render(...))` returns
what was rendered, including messages shared by all.

    <context>           messages that all attempts begin with, once
    <available_tools>   where all have the same tools; otherwise inside each attempt
    <trajectory id="3"> its own messages, then each of its further conversations as <history number="2">
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ludus.rewards.chat.base import Json
from ludus.runs.codec import map_texts

_TAG = re.compile(r"<(?=/?(?:trajectory|history|context|available_tools)\b)", re.IGNORECASE)
_CONTEXT = re.compile(r"<context>\n(.*?)\n</context>", re.DOTALL)
_ATTEMPT = re.compile(r'<trajectory id="([^"]*)">\n(.*?)\n</trajectory>', re.DOTALL)
_HISTORY = re.compile(r'<history number="\d+">\n(.*?)\n</history>', re.DOTALL)
_OWN_TOOLS = re.compile(r"<available_tools>\n.*?\n</available_tools>\n?", re.DOTALL)
_DATA_URL = re.compile(r"data:([\w.+/-]+);base64,[A-Za-z0-9+/=\s]{64,}")

# Tokens of models that are not here cannot be counted. English has some four bytes in a token, code three, and Chinese
# three in a character that is one token or two: three errs on the long side, and little.
BYTES_PER_TOKEN = 3
TAG_TOKENS = 16  # what opens and closes one attempt
LEAST_KEPT_CHARACTERS = 200
"""Strings are not cut to less than this; beyond that, whole messages are left out."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """One agent's messages, as plain JSON, and its tools."""

    messages: tuple[Json, ...]
    tools: tuple[Json, ...] = ()


@dataclass(frozen=True, slots=True)
class Attempt:
    """All conversations of one trajectory: the main one, then those of sub-agents and of compacted histories."""

    conversations: tuple[Conversation, ...]

    @property
    def main(self) -> Conversation:
        return self.conversations[0]


@dataclass(frozen=True, slots=True)
class JudgePrompt:
    """Attempts as text, with their common part separate."""

    context: str
    """Text before the attempts: shared messages, shared tools."""
    attempts: tuple[str, ...]
    """One text for each attempt, in order, without the enclosing tags."""

    def tokens_of(self, indices: Sequence[int]) -> int:
        """Estimated number of tokens of a prompt with these attempts."""
        return estimated_tokens(self.context) + sum(TAG_TOKENS + estimated_tokens(self.attempts[i]) for i in indices)

    def text_of(self, indices: Sequence[int], ids: Sequence[str]) -> str:
        """The user message with these attempts in this order. ids: names of all attempts."""
        shown = (f'<trajectory id="{ids[i]}">\n{self.attempts[i]}\n</trajectory>' for i in indices)
        return "\n\n".join((*((self.context,) if self.context else ()), "Trajectories:", *shown))


def estimated_tokens(text: str) -> int:
    return math.ceil(len(text.encode()) / BYTES_PER_TOKEN)


def num_shared_messages(attempts: Sequence[Attempt]) -> int:
    """How many first messages all main conversations share; for a single attempt, those before its first reply."""
    first = attempts[0].main.messages
    if len(attempts) == 1:
        replies = (i for i, message in enumerate(first) if message.get("role") == "assistant")
        return next(replies, 0)
    shared = min(len(attempt.main.messages) for attempt in attempts)
    for i in range(shared):
        if any(attempt.main.messages[i] != first[i] for attempt in attempts):
            return i
    return shared


def render(attempts: Sequence[Attempt], *, max_tokens: int) -> JudgePrompt:
    """All attempts as text, each so short that any two with the shared part have at most `max_tokens`.

    Texts that do not fit are cut in the middle, with a mark.
    """
    shared = num_shared_messages(attempts)
    tool_lists = [attempt.main.tools for attempt in attempts]
    has_one_list = all(tools == tool_lists[0] for tools in tool_lists)
    context = []
    if shared:
        context.append(("context", list(attempts[0].main.messages[:shared])))
    if has_one_list and tool_lists[0]:
        context.append(("available_tools", list(tool_lists[0])))
    # Half for what is shared at most, and the rest in equal parts for two attempts.
    room = max_tokens // 2
    head = "\n\n".join(_tagged(tag, _fitted(value, room // len(context))) for tag, value in context)
    room = (max_tokens - estimated_tokens(head)) // 2 - TAG_TOKENS
    return JudgePrompt(head, tuple(_attempt_text(attempt, shared, has_one_list, room) for attempt in attempts))


def read_attempts(text: str) -> dict[str, Attempt]:
    """Parses the text of a prompt: attempts by id, in the order shown, without tools."""
    found = _CONTEXT.search(text)
    shared = tuple(json.loads(found.group(1))) if found else ()
    attempts = {}
    for attempt_id, inside in _ATTEMPT.findall(text):
        own = _HISTORY.sub("", _OWN_TOOLS.sub("", inside))
        further = [Conversation(tuple(json.loads(history))) for history in _HISTORY.findall(inside)]
        attempts[attempt_id] = Attempt((Conversation((*shared, *json.loads(own))), *further))
    return attempts


def plain_message(message: Mapping[str, Any]) -> Json:
    """The message without empty fields, with images replaced by a mention."""
    return {name: map_texts(value, _without_data) for name, value in message.items() if value is not None}


def _without_data(text: str) -> str:
    return _DATA_URL.sub(lambda found: f"[{found.group(1)}, {len(found.group(0))} characters]", text)


def _attempt_text(attempt: Attempt, shared: int, has_one_list: bool, room: int) -> str:
    parts: list[tuple[str, Any]] = []
    if not has_one_list and attempt.main.tools:
        parts.append(("available_tools", list(attempt.main.tools)))
    parts.append(("", list(attempt.main.messages[shared:])))
    for number, conversation in enumerate(attempt.conversations[1:], start=2):
        parts.append((f'history number="{number}"', list(conversation.messages)))
    whole = [_json(value) for _, value in parts]
    total = sum(map(estimated_tokens, whole))
    if total > room:
        # Each part gives up the same share of its length.
        whole = [
            _fitted(value, room * estimated_tokens(text) // total)
            for (_, value), text in zip(parts, whole, strict=True)
        ]
    return "\n".join(_tagged(tag, text) if tag else text for (tag, _), text in zip(parts, whole, strict=True))


def _tagged(tag: str, text: str) -> str:
    return f"<{tag}>\n{text}\n</{tag.split()[0]}>"


def _json(value: Any) -> str:
    # Outside of strings JSON has no "<", so that the escape is always inside one.
    return _TAG.sub(r"\\u003c", json.dumps(value, ensure_ascii=False, default=str))


def _fitted(values: list[Any], max_tokens: int) -> str:
    """JSON of `values` in about `max_tokens`: first long strings are cut in the middle, then the list is."""
    text, limit = _json(values), max(LEAST_KEPT_CHARACTERS, BYTES_PER_TOKEN * max_tokens)
    while estimated_tokens(text) > max_tokens and limit >= LEAST_KEPT_CHARACTERS:
        text = _json(_with_short_strings(values, limit))
        limit //= 2
    kept = len(values)
    while estimated_tokens(text) > max_tokens and kept > 1:
        kept //= 2
        text = _json(_with_short_strings(_without_middle(values, kept), LEAST_KEPT_CHARACTERS))
    return text


def _with_short_strings(values: list[Any], limit: int) -> Any:
    def shorten(text: str) -> str:
        half = limit // 2
        left_out = f" … [{len(text) - 2 * half} characters left out] … "
        return text if len(text) <= limit else f"{text[:half]}{left_out}{text[-half:]}"

    return map_texts(values, shorten)


def _without_middle(values: list[Any], kept: int) -> list[Any]:
    """The first and last of `values`, `kept` in total, with a note how many were left out between."""
    head, tail = (kept + 1) // 2, kept // 2
    left_out = {"left_out": f"{len(values) - kept} messages"}
    return [*values[:head], left_out, *values[len(values) - tail :]]
