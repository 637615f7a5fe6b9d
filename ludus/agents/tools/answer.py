"""Reads what a tool returned as a text, a reward and metrics, or raises an error that says what is expected.

Knows: the forms a tool may answer in, how a text is cut to a number of tokens.  Knows not: tools, trajectories.
Invariant: a cut text, with the mark that shows the cut, keeps within the limit of tokens.
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
    "left": "(truncated)...",
    "middle": "...(truncated)...",
    "right": "...(truncated)",
}


class ToolError(Exception):
    """What was wrong with a call, as a message for the model. A tool may raise it. Other errors are shown to the model
    too, with a warning in the log."""


@dataclass(frozen=True, slots=True)
class ToolLimits:
    """Default limits of tools."""

    timeout_s: float | None = 60.0
    """Time limit of one call. None: no limit but the episode's."""
    max_response_tokens: int | None = None
    """Most tokens of one answer. None: no limit."""
    max_response_length: int | None = None
    """Most characters that are kept of one answer, beside the mark. None: no limit."""
    truncate_side: TruncateSide = "middle"
    """Which part of an answer that is too long is cut off: its beginning (left), its end (right), or neither (middle).
    """


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a call."""

    text: str
    """What the model reads, whether the call succeeded or not."""
    reward: float | None = None
    """Reward of this call. None: the tool gave none."""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None
    """What went wrong. None: nothing."""


def read_answer(returned: object) -> ToolResult:
    """The result, from any form in which a tool may answer. Raises ToolError for anything else."""
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
    """`value` as a reward. Raises ToolError if it is not a finite number."""
    if isinstance(value, str | bytes) or not isinstance(value, SupportsFloat) or not math.isfinite(float(value)):
        raise ToolError(f"the reward of a tool must be a finite number, got {value!r:.200}")
    return float(value)


def shorten(text: str, limits: ToolLimits, tokenizer: Tokenizer | None) -> str:
    """The text, cut if it is too long. tokenizer: None: tokens cannot be counted, and are not limited."""
    most, side = limits.max_response_tokens, limits.truncate_side
    if limits.max_response_length is not None and len(text) > limits.max_response_length:
        text = _cut(text, limits.max_response_length + len(_MARKS[side]), side)
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
    """The text, which is longer, cut to `length` characters, including a mark at the cut if there is room for one."""
    mark = _MARKS[side]
    kept = length - len(mark)
    if kept <= 0:
        mark, kept = "", length
    if side == "left":
        return mark + text[len(text) - kept :]
    if side == "right":
        return text[:kept] + mark
    head = kept - kept // 2
    return text[:head] + mark + text[len(text) - kept // 2 :]
