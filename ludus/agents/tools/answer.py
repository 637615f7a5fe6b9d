"""What a tool returned becomes a text, a reward and metrics, or an error that says what it should have been.

Knows: the forms a tool may answer in, how a text is cut to a number of tokens.  Knows not: tools, trajectories.
Invariant: a text that is cut has at most the tokens and characters that it may have, its mark included.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, SupportsFloat

import pydantic_core

from ludus.agents.tools.base import ToolResponse
from ludus.text.tokenizer import Tokenizer

TruncateSide = Literal["left", "middle", "right"]

_ALLOWED = "a text, a value that JSON can hold, a ToolResponse, or a tuple of one of them, a reward and metrics"
_MARKS: Mapping[TruncateSide, str] = {
    "left": "...(truncated)",
    "middle": "...(truncated)...",
    "right": "(truncated)...",
}


class ToolError(Exception):
    """What was wrong with a call, as a message for the model. A tool may raise it; any other error is shown as well,
    but is warned of in the log."""


@dataclass(frozen=True, slots=True)
class ToolLimits:
    """What holds for every tool that does not say otherwise."""

    timeout_s: float | None = 60.0
    """Of one call. None: it may take for ever, or as long as its episode."""
    max_response_tokens: int | None = None
    """Of one answer. None: no limit."""
    max_response_length: int | None = None
    """The same in characters."""
    truncate_side: TruncateSide = "middle"
    """What remains of an answer that is too long: its left, its right, or both ends, without the middle."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What became of a call."""

    text: str
    """For the model to read, whether it worked or not."""
    reward: float | None = None
    """Of this call. None: the tool gave none."""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None
    """What was wrong. None: nothing."""


def read_answer(returned: object) -> ToolResult:
    """The answer in whatever form a tool may give it. Raises ToolError for any other."""
    if isinstance(returned, tuple):
        if not 1 <= len(returned) <= 3:
            raise ToolError(f"the tool returned a tuple of {len(returned)} values; allowed: {_ALLOWED}")
        response, reward, metrics = (*returned, None, None)[:3]
    else:
        response, reward, metrics = returned, None, None
    if metrics is not None and not isinstance(metrics, Mapping):
        raise ToolError(f"the metrics of a tool must be a mapping, got {metrics!r:.200}")
    return ToolResult(_text(response), None if reward is None else as_reward(reward), dict(metrics or {}))


def as_reward(value: object) -> float:
    """A finite number. Raises ToolError otherwise."""
    if isinstance(value, str | bytes) or not isinstance(value, SupportsFloat) or not math.isfinite(float(value)):
        raise ToolError(f"the reward of a tool must be a finite number, got {value!r:.200}")
    return float(value)


def shorten(text: str, limits: ToolLimits, tokenizer: Tokenizer | None) -> str:
    """The text, cut where it is too long. tokenizer: None: tokens cannot be counted, and are not limited."""
    if limits.max_response_length is not None and len(text) > limits.max_response_length:
        text = _cut(text, limits.max_response_length, limits.truncate_side)
    most, side = limits.max_response_tokens, limits.truncate_side
    if most is None or tokenizer is None:
        return text

    def fits(candidate: str) -> bool:
        return len(tokenizer.encode(candidate)) <= most

    # No token stands for more characters, so that of a text of any length only so much is ever looked at.
    room = most * tokenizer.longest_token + len(_MARKS[side])
    if len(text) <= room and fits(text):
        return text
    lengths = range(1, min(room, len(text) - 1) + 1)
    return _cut(text, bisect_left(lengths, True, key=lambda length: not fits(_cut(text, length, side))), side)


def _text(response: object) -> str:
    if isinstance(response, ToolResponse):
        if response.image or response.video:
            kind = "an image" if response.image else "a video"
            raise ToolError(f"the tool answered with {kind}, and this model reads text alone")
        return response.text or ""
    if response is None or isinstance(response, str):
        return response or ""
    try:
        return pydantic_core.to_json(response, inf_nan_mode="constants").decode()
    except pydantic_core.PydanticSerializationError:
        raise ToolError(f"the tool returned a {type(response).__name__}; allowed: {_ALLOWED}") from None


def _cut(text: str, length: int, side: TruncateSide) -> str:
    """`length` characters of the text, which has more, with a mark where it was cut; where there is room for one."""
    mark = _MARKS[side]
    kept = length - len(mark)
    if kept <= 0:
        mark, kept = "", length
    if side == "left":
        return text[:kept] + mark
    if side == "right":
        return mark + text[len(text) - kept :]
    head = kept - kept // 2
    return text[:head] + mark + text[len(text) - kept // 2 :]
