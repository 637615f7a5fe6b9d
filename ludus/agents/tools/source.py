"""Sources of tools: a single tool, or something that provides many once it is set up.

Knows: tools before they are in a tool set.  Knows not: trajectories.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ludus.agents.tools.base import BaseTool
from ludus.agents.tools.function import FunctionTool, tool_of
from ludus.errors import UserError
from ludus.import_strings import import_object

_FORMS = "a BaseTool, a function, something with `setup` and `close` that gives tools, or an import string of one"


class ToolSource(Protocol):
    """Provides tools once it is set up."""

    async def setup(self) -> Sequence[BaseTool]: ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class OneTool:
    """A source of one tool."""

    tool: BaseTool

    async def setup(self) -> Sequence[BaseTool]:
        await self.tool.setup()
        return (self.tool,)

    async def close(self) -> None:
        await self.tool.close()


@dataclass(frozen=True, slots=True)
class ToolPlan:
    """A source, with limits for calls of its tools."""

    source: ToolSource
    timeout_s: float | None = None
    """Time limit of one call. None: the run's `ToolLimits.timeout_s`."""
    max_concurrent: int | None = None
    """Most calls of each tool at a time, over all trajectories. None: no limit."""


def plan_of(given: Any) -> ToolPlan:
    """The plan for anything given as a tool. Raises UserError if it is not a tool."""
    if isinstance(given, str):
        given = import_object(given)
    if isinstance(given, ToolPlan):
        return given
    if isinstance(given, BaseTool):
        return ToolPlan(OneTool(given))
    marked = tool_of(given)
    if marked is not None:
        return ToolPlan(OneTool(marked))
    if callable(getattr(given, "setup", None)) and callable(getattr(given, "close", None)):
        return ToolPlan(given)
    if callable(given) and not isinstance(given, type):
        return ToolPlan(OneTool(FunctionTool(given)))
    raise UserError(f"{given!r:.200} of type {type(given).__name__} is no tool; pass {_FORMS}")
