"""verl's functions for loops that load tools themselves: a registry of functions, and readers of tool files.

Knows: functions, files of tools.  Knows not: trajectories; a run's own tools are a `ToolSet`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ludus.agents.signatures import is_async
from ludus.agents.tools import function as functions
from ludus.agents.tools.answer import ToolError, read_answer
from ludus.agents.tools.base import BaseTool, ToolResponse
from ludus.agents.tools.file import read_tool_file
from ludus.agents.tools.schema import OpenAIFunctionToolSchema
from ludus.agents.tools.signature import read_docstring
from ludus.agents.tools.source import OneTool
from ludus.compat.names import find, find_class
from ludus.errors import UserError
from ludus.import_strings import import_file
from ludus.settings import did_you_mean

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class FunctionTool:
    """A function that a model may call."""

    name: str
    fn: Callable[..., Any]
    tool_schema: OpenAIFunctionToolSchema
    is_async: bool = False

    async def call(self, parameters: dict[str, Any]) -> Any:
        """What the function returns; one that blocks runs in a thread."""
        return await (self.fn(**parameters) if self.is_async else asyncio.to_thread(self.fn, **parameters))


FUNCTION_TOOL_REGISTRY: dict[str, FunctionTool] = {}
"""Functions by name. Not used for a run's tools, which come from its configured file."""
_LOADED_FUNCTION_TOOL_PATHS: dict[Path, list[FunctionTool]] = {}


def function_tool(name: Any = None, *, schema: functions.Schema | None = None, **how: Any) -> Any:
    """The function itself, marked as a tool and entered by its name: `@function_tool`, `@function_tool("name")`.

    how: as for the tools of Ludus, `runs_in`.  Raises UserError where it is defined if a model could not call it, if
    it does not say what it and its arguments are, or if another function of its module has the name.
    """

    def enter(fn: Callable[..., Any]) -> Callable[..., Any]:
        if schema is None:
            _check_described(fn)
        given = {"schema": schema, **how}
        marked = functions.function_tool(None if callable(name) else name, **given)(fn)
        tool = functions.tool_of(marked)
        assert tool is not None and tool.tool_schema is not None, "it was marked just now"
        known = FUNCTION_TOOL_REGISTRY.get(tool.name)
        if known is not None and _place(known.fn) != _place(fn):
            if known.fn.__module__ == fn.__module__:
                raise UserError(
                    f"the function tool {tool.name!r} is already registered: it is {_place(known.fn)}; give "
                    f"{_place(fn)} another name: @function_tool('name')"
                )
            logger.warning("the function tool %r was %s and is %s from now on", tool.name, _place(known.fn), _place(fn))
        FUNCTION_TOOL_REGISTRY[tool.name] = FunctionTool(tool.name, fn, tool.tool_schema, is_async(fn))
        return fn

    return enter(name) if callable(name) else enter


def _check_described(function: Callable[..., Any]) -> None:
    """Raises UserError where verl does: a model is shown what stands in the docstring and the annotations."""
    place, described = _place(function), read_docstring(inspect.getdoc(function) or "")
    fix = "write it, or pass @function_tool(schema=…)"
    if not inspect.getdoc(function):
        raise UserError(f"the function tool {place} has no docstring, from which its description is taken; {fix}")
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            raise UserError(
                f"the function tool {place} has the variadic parameter {name!r}, which no schema can describe; name "
                "each argument, or pass @function_tool(schema=…)"
            )
        if parameter.annotation is inspect.Parameter.empty:
            raise UserError(f"the function tool {place} is missing a type hint for the argument {name!r}; {fix}")
        if not described.arguments.get(name):
            raise UserError(
                f"the function tool {place} has no description for the argument {name!r} in `Args:` of its docstring; "
                f"{fix}"
            )


def get_function_tool(name: str) -> FunctionTool:
    """Raises KeyError that names the nearest."""
    if name not in FUNCTION_TOOL_REGISTRY:
        hint = did_you_mean(name, FUNCTION_TOOL_REGISTRY)
        raise KeyError(f"there is no function tool {name!r}{hint} Their file is rollout.multi_turn.function_tool_path")
    return FUNCTION_TOOL_REGISTRY[name]


def load_function_tools_from_path(path: str) -> list[FunctionTool]:
    """The tools that a Python file marks, in their order; it is run once. Raises FileNotFoundError."""
    file = Path(path).expanduser().resolve()
    if not file.is_file():
        raise FileNotFoundError(f"function_tool_path does not exist: {path}")
    if file not in _LOADED_FUNCTION_TOOL_PATHS:
        before = dict(FUNCTION_TOOL_REGISTRY)
        import_file(file)
        found = [tool for name, tool in FUNCTION_TOOL_REGISTRY.items() if before.get(name) is not tool]
        if not found:
            logger.warning("%s: no @function_tool decorators found; there is nothing to call in it", path)
        _LOADED_FUNCTION_TOOL_PATHS[file] = found
    return _LOADED_FUNCTION_TOOL_PATHS[file]


def normalize_function_tool_return(ret: Any) -> tuple[ToolResponse, float, dict[str, Any]]:
    """What a function returned as response, reward and metrics. Raises TypeError for a tuple of another length."""
    parts = ret if isinstance(ret, tuple) else (ret,)
    if not 1 <= len(parts) <= 3:
        raise TypeError(f"a tuple must have length 1, 2, or 3: response, reward, metrics; got {ret!r:.200}")
    response, reward, metrics = (*parts, None, None)[:3]
    if not isinstance(response, ToolResponse):
        try:
            response = ToolResponse(text=read_answer(response).text)
        except ToolError:
            response = ToolResponse(text=str(response))
    return response, float(reward or 0.0), dict(metrics or {})


def as_verls(tool: BaseTool) -> BaseTool | FunctionTool:
    """A tool of a run in verl's form: functions are wrapped, other tools are unchanged."""
    if not isinstance(tool, functions.FunctionTool):
        return tool
    assert tool.tool_schema is not None, "it was made of its signature"
    return FunctionTool(tool.name, tool.function, tool.tool_schema, is_async(tool.function))


def as_ours(tool: Any) -> BaseTool:
    """A loop's tool in Ludus's form; a blocking function runs in a thread, because there is no setup that could start a
    process."""
    if isinstance(tool, FunctionTool):
        return functions.FunctionTool(tool.fn, schema=tool.tool_schema, runs_in="thread")
    return tool if isinstance(tool, BaseTool) else _OtherTool(tool)


class _OtherTool(BaseTool):
    """A loop's tool that does not derive from BaseTool: verl calls whatever has its methods."""

    def __init__(self, tool: Any) -> None:
        named = OpenAIFunctionToolSchema.model_validate({"function": {"name": tool.name}})
        super().__init__(tool_schema=getattr(tool, "tool_schema", None) or named)
        for method in ("create", "execute", "calc_reward", "release"):
            setattr(self, method, getattr(tool, method, getattr(self, method)))


def get_tool_class(cls_name: str) -> type[BaseTool]:
    """The class that an import string names. Raises ConfigError if it is no tool."""
    found: type[BaseTool] = find_class(cls_name, BaseTool, "class_name")
    return found


def initialize_tools_from_config(tools_config_file: str | Path) -> list[BaseTool]:
    """New tools of a YAML file. Raises UserError that says which entry cannot be; MCP servers are a run's to start."""
    sources = [plan.source for plan in read_tool_file(Path(tools_config_file), find)]
    tools = [source.tool for source in sources if isinstance(source, OneTool)]
    if len(tools) < len(sources):
        raise UserError(
            f"{tools_config_file} names MCP servers, which a run starts; a loop has all tools in `self.open_tools(…)`"
        )
    return tools


def load_all_tools(tool_config_path: str | None, function_tool_path: str | None) -> list[BaseTool | FunctionTool]:
    """The tools of both files. Raises UserError if two have one name."""
    tools: list[BaseTool | FunctionTool] = []
    tools += initialize_tools_from_config(tool_config_path) if tool_config_path else []
    known = {tool.name for tool in tools}
    found = load_function_tools_from_path(function_tool_path) if function_tool_path else []
    if both := sorted(tool.name for tool in found if tool.name in known):
        raise UserError(f"names of tools in {function_tool_path}, {both}, collide with those in {tool_config_path}")
    return [*tools, *found]


def _place(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{function.__qualname__}"
