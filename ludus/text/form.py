"""Converts messages to the form that a chat template expects: names and shapes differ between templates.

Knows: the plain values that templates read.  Knows not: Jinja.
Invariant: nothing of a message is left out; only its form is chosen.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from ludus.text.parsers.tags import THINK_CLOSE, THINK_OPEN
from ludus.types import Message, ToolCall, ToolSpec

_REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
"""Templates' names for the thinking in a message; most servers use the first in answers."""
_PROBE = "ludus_probe"
_USER = Message("user", "Probe.")
_CALLING = Message("assistant", tool_calls=(ToolCall(id="call00000", name=_PROBE, arguments='{"key": "value"}'),))
_RESULT = Message("tool", "Probe.", tool_call_id="call00000")


class Show(Protocol):
    """Renders message values with a template; '' if the template refuses them."""

    def __call__(self, values: list[dict[str, Any]], *, generation_prompt: bool) -> str: ...


@dataclass(frozen=True, slots=True)
class MessageForm:
    """The form in which one template reads messages."""

    has_developers: bool = False
    """False: a developer message is given as a system message."""
    absent_content: str | None = ""
    """The content of a message that only calls tools and has no text."""
    arguments_as_text: bool = False
    """Give the arguments of a call as JSON text; otherwise as an object, if they are one."""
    reasoning_key: str | None = _REASONING_KEYS[0]
    """None: thinking is given in the content, between its tags."""
    content_as_parts: bool = False
    """Give text as a list of parts, as templates of vision models expect it."""

    @classmethod
    def of(cls, source: str, show: Show) -> MessageForm:
        """The form in which the template `source` shows texts, calls and thinking, found by rendering test messages."""
        plain = cls(has_developers="developer" in source)
        form = _first([plain, replace(plain, content_as_parts=True)], partial(_shows_text, show), plain)
        form = _first(_forms_of_calls(form), partial(_shows_call, show), form)
        keys: list[str | None] = [key for key in _REASONING_KEYS if key in source]
        keys += [None] if THINK_CLOSE in source else []
        return _first([replace(form, reasoning_key=key) for key in keys], partial(_shows_thinking, show), form)

    def value(self, message: Message) -> dict[str, Any]:
        role = "system" if message.role == "developer" and not self.has_developers else message.role
        value: dict[str, Any] = {"role": role, "content": self._content(message)}
        if message.reasoning is not None and self.reasoning_key is not None:
            value[self.reasoning_key] = message.reasoning
        if message.tool_calls:
            value["tool_calls"] = [self._call(call) for call in message.tool_calls]
        if message.tool_call_id is not None:
            value["tool_call_id"] = message.tool_call_id
        if message.name is not None:
            value["name"] = message.name
        return value

    def _content(self, message: Message) -> Any:
        text = message.content
        if message.reasoning is not None and self.reasoning_key is None:
            text = f"{THINK_OPEN}\n{message.reasoning}\n{THINK_CLOSE}\n\n{text or ''}"
        if text is None:
            text = self.absent_content if message.tool_calls else ""
        return [{"type": "text", "text": text}] if self.content_as_parts and text is not None else text

    def _call(self, call: ToolCall) -> dict[str, Any]:
        arguments: Any = call.arguments
        if not self.arguments_as_text and isinstance(parsed := json_or_text(arguments), dict):
            arguments = parsed
        return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def tool_value(tool: ToolSpec) -> dict[str, Any]:
    """A tool in the form that templates read."""
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": function}


def _forms_of_calls(form: MessageForm) -> list[MessageForm]:
    """Candidate forms, best first. Many templates print None as a word, or fail on it; most expect objects."""
    shapes = itertools.product((False, True), ("", None))
    return [replace(form, arguments_as_text=as_text, absent_content=absent) for as_text, absent in shapes]


def _first(forms: Sequence[MessageForm], is_right: Callable[[MessageForm], bool], other: MessageForm) -> MessageForm:
    return next(filter(is_right, forms), other)


def _shows_text(show: Show, form: MessageForm) -> bool:
    return _PROBE in show(_values(form, (replace(_USER, content=_PROBE),)), generation_prompt=True)


def _shows_call(show: Show, form: MessageForm) -> bool:
    shown = show(_values(form, (_USER, _CALLING)), generation_prompt=True)
    return _PROBE in shown and "{'key'" not in shown  # an object that was printed as Python writes it


def _shows_thinking(show: Show, form: MessageForm) -> bool:
    """Whether the template shows thinking in the last message, or before a pending call."""
    answer = replace(_USER, role="assistant", reasoning=_PROBE)
    calling = replace(_CALLING, reasoning=f"{_PROBE} thinking")
    last = show(_values(form, (_USER, answer)), generation_prompt=False)
    before = show(_values(form, (_USER, calling, _RESULT)), generation_prompt=True)
    return _PROBE in last or f"{_PROBE} thinking" in before


def _values(form: MessageForm, messages: Sequence[Message]) -> list[dict[str, Any]]:
    return [form.value(message) for message in messages]


def json_or_text(text: str) -> object:
    """`text` parsed as JSON, or `text` itself if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
