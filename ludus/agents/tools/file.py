"""Files of tools: verl's YAML, and Python files with functions marked `@function_tool`.

Knows: the keys of the YAML, the names of verl.  Knows not: what the tools do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import pydantic

from ludus.agents.tools.base import BaseTool
from ludus.agents.tools.function import FunctionTool, functions_of
from ludus.agents.tools.mcp import McpServer, McpServers, McpTool
from ludus.agents.tools.mcp_file import read_mcp_file
from ludus.agents.tools.schema import read_schema
from ludus.agents.tools.source import OneTool, ToolPlan
from ludus.errors import ConfigError, UserError
from ludus.settings import Settings, import_file, import_object, load_yaml

ToolT = TypeVar("ToolT", bound=BaseTool)


Find = Callable[[str], Any]
"""What an import string names. Raises UserError if there is nothing."""


class McpPart(Settings):
    """Which servers, and which of their tools, an entry of type mcp offers."""

    mcp_servers_config_path: Path
    """JSON file; looked for from the working directory, then beside the YAML file."""
    tool_selected_list: tuple[str, ...] | None = None
    """None: all tools of all servers."""


class McpConfig(Settings):
    """The `config` of an entry of type mcp."""

    type: Literal["mcp"]
    timeout: float | None = pydantic.Field(default=None, gt=0)
    """verl's name of `timeout_s`."""
    rate_limit: int | None = pydantic.Field(default=None, ge=1)
    """verl's name of `max_concurrent`."""


class ToolFileEntry(Settings):
    """One tool, below `tools`."""

    class_name: str | None = None
    """Its class: 'pkg.mod.Name' or 'path/to/file.py:Name'. None: `config.type` is 'mcp', whose tools need no class."""
    config: dict[str, Any] = pydantic.Field(default_factory=dict)
    """What the class is made with. Its `type` is `native`, the default, or `mcp`."""
    tool_schema: dict[str, Any] | None = None
    """None: the class says it."""
    mcp: McpPart | None = None
    """With `config.type: mcp` alone."""
    timeout_s: float | None = pydantic.Field(default=None, gt=0)
    """Of one call. None: the run's."""
    max_concurrent: int | None = pydantic.Field(default=None, ge=1)
    """Calls at a time, of all trajectories. None: any number."""


def read_tool_file(path: Path, find: Find = import_object) -> list[ToolPlan]:
    """The tools of a YAML file. find: the class that an import string names.

    Raises UserError that says which entry cannot be.
    """
    data = load_yaml(path, "the tools in")
    entries = data.get("tools") if isinstance(data, dict) else None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ConfigError(f"{path} must hold `tools`, a list of mappings")
    return [_plan(entry, f"{path}: tools.{idx}", path.expanduser().parent, find) for idx, entry in enumerate(entries)]


def read_function_file(path: Path) -> Sequence[FunctionTool]:
    """The tools that a Python file marks, in the order of their definition. Raises UserError if it marks none."""
    tools = list(functions_of(vars(import_file(path.expanduser()))))
    if not tools:
        raise UserError(f"{str(path)!r} marks no function with @function_tool; there is nothing to call in it")
    return tools


def _plan(given: Mapping[str, Any], where: str, folder: Path, find: Find) -> ToolPlan:
    try:
        entry = ToolFileEntry(**given)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    kind = entry.config.get("type", "native")
    if kind == "mcp":
        return _mcp_plan(entry, where, folder, find)
    if kind == "native":
        return _native_plan(entry, where, find)
    raise ConfigError(f"{where}: config.type={kind!r} is not possible; there are 'native' and 'mcp'")


def _native_plan(entry: ToolFileEntry, where: str, find: Find) -> ToolPlan:
    if entry.class_name is None:
        raise ConfigError(f"{where} needs a class_name, such as 'my_tools.Calculator' or 'my_tools.py:Calculator'")
    if entry.mcp is not None:
        raise ConfigError(f"{where}: `mcp` cannot act without config.type=mcp")
    cls = _class(entry.class_name, BaseTool, where, find)
    schema = None if entry.tool_schema is None else read_schema(entry.tool_schema, f"{where}: tool_schema")
    return ToolPlan(OneTool(cls(entry.config, schema)), entry.timeout_s, entry.max_concurrent)


def _mcp_plan(entry: ToolFileEntry, where: str, folder: Path, find: Find) -> ToolPlan:
    if entry.mcp is None:
        raise ConfigError(f"{where} is of type mcp and needs `mcp: {{mcp_servers_config_path: …}}`")
    if entry.tool_schema is not None:
        raise ConfigError(f"{where}: tool_schema cannot act: MCP servers say the schemas of their tools")
    try:
        config = McpConfig(**entry.config)
    except ConfigError as error:
        raise ConfigError(f"{where}: config: {error}") from None
    tool_class = McpTool if entry.class_name is None else _class(entry.class_name, McpTool, where, find)
    path = entry.mcp.mcp_servers_config_path.expanduser()
    if not path.is_file() and (folder / path).is_file():
        path = folder / path
    servers = [
        McpServer(name, address, tool_class=tool_class, config=entry.config)
        for name, address in read_mcp_file(path).items()
    ]
    source = McpServers(servers, entry.mcp.tool_selected_list)
    return ToolPlan(source, entry.timeout_s or config.timeout, entry.max_concurrent or config.rate_limit)


def _class(reference: str, base: type[ToolT], where: str, find: Find) -> type[ToolT]:
    cls = find(reference)
    if not (isinstance(cls, type) and issubclass(cls, base)):
        raise ConfigError(
            f"{where}: class_name={reference!r} must be a subclass of {base.__name__}, but is {cls!r:.200}"
        )
    return cls
