"""Generates random conversations with unusual content, as agents have them; not yet rendered by a template.

Knows: messages.  Knows not: templates, text of prompts.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ludus.types import Message, ToolCall, ToolSpec

Reception = Literal["shown", "dropped", "refused"]

_WORDS = (
    "Go on.",
    "7",
    "Ünïcode ☕ 漢字",
    "two\nlines",
    "  blanks at the edges \n",
    "\n\n",
    "",
    "<b>not a tag</b>",
    "{}",
)
"""Texts of users and tools that templates may handle wrongly: empty text, outer whitespace, tags, braces."""
_SPOKEN = ("Fine.", "It is 7.", "naïve ☕", "two\n\nparagraphs", " led by a blank", "ended by one\n", "")
_THOUGHTS = ("I add.", "Two\n\nparagraphs.", "漢字?", "")
_VALUES: Mapping[str, tuple[Any, ...]] = {
    "integer": (1, -20),
    "number": (-0.5, 3),
    "string": ("x", 'näive "quoted" \\ ', "two\nlines", "7", ""),
    "boolean": (True, False),
    "array": ([1, "a"], []),
    "object": ({"deep": {"er": []}}, {}),
}
"""By JSON type, so that arguments fit their schema: formats other than JSON can be parsed only with the schema."""
_TOOLS = tuple(
    ToolSpec(name, "A tool.", {"type": "object", "properties": {key: {"type": kind} for key, kind in taken.items()}})
    for name, taken in (
        ("add", {"a": "integer", "b": "number", "round": "boolean"}),
        ("look_up", {"word": "string", "tags": "array", "options": "object"}),
    )
)
_MOST_TURNS = 6


@dataclass(frozen=True, slots=True)
class Abilities:
    """How a template treats each element of a conversation."""

    system: Reception
    late_system: Reception
    """A system message that is not the first."""
    tools: Reception
    calls: Reception
    parallel_calls: Reception
    text_beside_calls: Reception
    results: Reception
    thinking: Reception
    """In the last message; whether it is kept in later prompts is what the doctor examines."""
    thinks: bool
    """Whether the model writes thinking blocks, shown or not."""

    @property
    def has_tools(self) -> bool:
        return self.tools == self.calls == self.results == "shown"


@dataclass(frozen=True, slots=True)
class PlannedMessage:
    """An intended message. Ids of calls, and of the calls that results answer, are set during the replay."""

    message: Message
    cut: float | None = None
    """Share of a reply's text after which a token limit cuts it. None: it ends by itself."""
    is_respelled: bool = False
    """Whether the model formats the JSON of its calls differently from the template."""


@dataclass(frozen=True, slots=True)
class Conversation:
    tools: tuple[ToolSpec, ...]
    said: tuple[PlannedMessage, ...]


def random_conversation(draw: random.Random, able: Abilities) -> Conversation:
    """A conversation of up to six replies with any elements that the template accepts; it ends with a request."""
    tools = _TOOLS[: draw.randint(1, 2)] if able.has_tools and draw.random() < 0.7 else ()
    said: list[PlannedMessage] = []
    if able.system == "shown" and draw.random() < 0.5:
        said.append(_say(draw, "system"))
    said.append(_say(draw, "user"))
    for _ in range(draw.randint(1, _MOST_TURNS)):
        reply = _reply(draw, able, tools)
        said.append(reply)
        said += _reaction(draw, able, reply)
    return Conversation(tools, tuple(said))


def _say(draw: random.Random, role: Literal["system", "user", "tool"]) -> PlannedMessage:
    return PlannedMessage(Message(role, draw.choice(_WORDS)))


def _reaction(draw: random.Random, able: Abilities, reply: PlannedMessage) -> list[PlannedMessage]:
    """The messages that the agent sends after a reply."""
    said = [_say(draw, "tool") for _ in reply.message.tool_calls]
    if said and draw.random() < 0.9:
        return said
    if able.late_system == "shown" and draw.random() < 0.1:
        said.append(_say(draw, "system"))
    return [*said, _say(draw, "user")]


def _reply(draw: random.Random, able: Abilities, tools: Sequence[ToolSpec]) -> PlannedMessage:
    thought = draw.choice(_THOUGHTS) if able.thinks and draw.random() < 0.5 else None
    if not tools or draw.random() < 0.4:
        cut = draw.random() if draw.random() < 0.1 else None
        return PlannedMessage(Message("assistant", draw.choice(_SPOKEN), reasoning=thought), cut)
    num_calls = draw.choice((1, 1, 2, 3)) if able.parallel_calls == "shown" else 1
    calls = tuple(_call(draw, tools, idx) for idx in range(num_calls))
    is_silent = able.text_beside_calls != "shown" or draw.random() < 0.6
    content = None if is_silent else draw.choice(_SPOKEN) or None
    return PlannedMessage(Message("assistant", content, thought, calls), is_respelled=draw.random() < 0.3)


def _call(draw: random.Random, tools: Sequence[ToolSpec], idx: int) -> ToolCall:
    tool = draw.choice(tools)
    types = {name: schema["type"] for name, schema in tool.parameters["properties"].items()}
    names = draw.sample(sorted(types), draw.randint(0, len(types)))
    arguments = json.dumps({name: draw.choice(_VALUES[types[name]]) for name in names}, ensure_ascii=False)
    return ToolCall(f"call0000{idx}", tool.name, arguments)
