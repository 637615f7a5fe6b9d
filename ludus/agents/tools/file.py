"""Files of tools: verl's YAML, and Python files with functions marked `@function_tool`.

Knows: the keys of the YAML.  Knows not: what the tools do.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pydantic
import yaml

from ludus.agents.imports import import_file, import_object
from ludus.agents.tools.base import BaseTool
from ludus.agents.tools.function import FunctionTool, functions_of
from ludus.agents.tools.schema import read_schema
from ludus.agents.tools.source import OneTool, ToolPlan
from ludus.errors import ConfigError, UserError
from ludus.settings import Settings


class ToolFileEntry(Settings):
    """One tool, below `tools`."""

    class_name: str | None = None
    """Its class: 'pkg.mod.Name' or 'path/to/file.py:Name'. None: `config.type` is 'mcp', whose tools need no class."""
    config: dict[str, Any] = pydantic.Field(default_factory=dict)
    """What the class is made with. `type` is 'native' or 'mcp'."""
    tool_schema: dict[str, Any] | None = None
    """None: the class says it."""
    timeout_s: float | None = pydantic.Field(default=None, gt=0)
    """Of one call. None: the run's."""
    max_concurrent: int | None = pydantic.Field(default=None, ge=1)
    """Calls at a time, of all trajectories. None: any number."""


class ToolFile(Settings):
    """The whole file."""

    tools: tuple[ToolFileEntry, ...]


def read_tool_file(path: Path) -> list[ToolPlan]:
    """The tools of a YAML file. Raises UserError that says which entry cannot be."""
    try:
        data = yaml.safe_load(path.expanduser().read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(
            f"cannot read the tools in {str(path)!r}: {error.strerror} (looked from {Path.cwd()})"
        ) from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path} must hold `tools:`, a list, but holds a {type(data).__name__}")
    try:
        entries = ToolFile(**data).tools
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    return [_plan(entry, f"{path}: tools.{idx}") for idx, entry in enumerate(entries)]


def read_function_file(path: Path) -> Sequence[FunctionTool]:
    """The tools that a Python file marks, in the order of their definition. Raises UserError if it marks none."""
    tools = list(functions_of(vars(import_file(path.expanduser()))))
    if not tools:
        raise UserError(f"{str(path)!r} marks no function with @function_tool; there is nothing to call in it")
    return tools


def _plan(entry: ToolFileEntry, where: str) -> ToolPlan:
    if entry.class_name is None:
        raise ConfigError(f"{where} needs a class_name, such as 'my_tools.Calculator' or 'my_tools.py:Calculator'")
    cls = import_object(entry.class_name)
    if not (isinstance(cls, type) and issubclass(cls, BaseTool)):
        raise ConfigError(
            f"{where}: class_name={entry.class_name!r} must be a subclass of BaseTool, but is {cls!r:.200}"
        )
    schema = None if entry.tool_schema is None else read_schema(entry.tool_schema, f"{where}: tool_schema")
    return ToolPlan(OneTool(cls(entry.config, schema)), entry.timeout_s, entry.max_concurrent)
