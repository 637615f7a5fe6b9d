"""Reads tools files: verl's YAML, the JSON of MCP servers that it names, and Python files with `@function_tool`.

Knows: verl's keys of an entry, the two kinds of tools, `native` and `mcp`.  Knows not: what the tools do.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import pydantic

from ludus.agents.tools.base import BaseTool
from ludus.agents.tools.function import FunctionTool, functions_of
from ludus.agents.tools.mcp import McpAddress, McpServer, McpServers, McpTool
from ludus.agents.tools.schema import read_schema
from ludus.agents.tools.source import OneTool, ToolPlan
from ludus.errors import ConfigError, UserError
from ludus.import_strings import import_file, import_object
from ludus.settings import Settings, load_yaml

ToolT = TypeVar("ToolT", bound=BaseTool)
Find = Callable[[str], Any]
"""(import string): the object. Raises UserError if there is none."""


class McpPart(Settings):
    """The servers of an entry of type mcp, and which of their tools it offers."""

    mcp_servers_config_path: Path
    """JSON file, relative to the working directory or else to the YAML file."""
    tool_selected_list: tuple[str, ...] | None = None
    """None: all tools of all servers."""


class ToolFileEntry(Settings):
    """One entry below `tools`."""

    class_name: str | None = None
    """Its class: 'pkg.mod.Name' or 'path/to/file.py:Name'. None: with `config.type: mcp`, which needs no class."""
    config: dict[str, Any] = pydantic.Field(default_factory=dict)
    """Configuration for the class. Its `type` is the kind of tool, by default `native`."""
    tool_schema: dict[str, Any] | None = None
    """None: from the class."""
    mcp: McpPart | None = None
    """Only with `config.type: mcp`."""
    timeout_s: float | None = pydantic.Field(default=None, gt=0)
    """Time limit of one call. None: the run's."""
    max_concurrent: int | None = pydantic.Field(default=None, ge=1)
    """Most calls at a time, over all trajectories. None: no limit."""


@dataclass(frozen=True, slots=True)
class EntryLocation:
    """The place of an entry."""

    name: str
    """The entry's name in error messages."""
    folder: Path
    """Folder of its file."""
    find: Find

    def class_of(self, reference: str, base: type[ToolT]) -> type[ToolT]:
        """The class that an import string names. Raises ConfigError if it is not a subclass of `base`."""
        cls = self.find(reference)
        if not (isinstance(cls, type) and issubclass(cls, base)):
            raise ConfigError(
                f"{self.name}: class_name={reference!r} must be a subclass of {base.__name__}, but is {cls!r:.200}"
            )
        return cls


class _McpConfig(Settings):
    """The `config` of an entry of type mcp."""

    type: Literal["mcp"]
    timeout: float | None = pydantic.Field(default=None, gt=0)
    """verl's name for `timeout_s`."""
    rate_limit: int | None = pydantic.Field(default=None, ge=1)
    """verl's name for `max_concurrent`."""


class _McpFileEntry(McpAddress):
    """One server, below `mcpServers`."""

    type: Literal["stdio", "http", "streamable-http", "streamableHttp"] | None = None
    """None: `stdio` with a command, `http` with a url. The older `sse` is not supported."""
    disabled: bool = False


def read_tool_file(path: Path, find: Find = import_object) -> list[ToolPlan]:
    """The tools of a YAML file. find: (import string): the class.

    Raises UserError that names the entry which is wrong.
    """
    data = load_yaml(path, "the tools in")
    entries = data.get("tools") if isinstance(data, dict) else None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ConfigError(f"{path} must hold `tools`, a list of mappings")
    folder = path.expanduser().parent
    return [_plan(entry, EntryLocation(f"{path}: tools.{idx}", folder, find)) for idx, entry in enumerate(entries)]


def read_function_file(path: Path) -> Sequence[FunctionTool]:
    """The functions that a Python file marks as tools, in order. Raises UserError if there is none."""
    tools = list(functions_of(vars(import_file(path.expanduser()))))
    if not tools:
        raise UserError(f"{str(path)!r} marks no function with @function_tool; there is nothing to call in it")
    return tools


def _plan(given: Mapping[str, Any], location: EntryLocation) -> ToolPlan:
    try:
        entry = ToolFileEntry(**given)
    except ConfigError as error:
        raise ConfigError(f"{location.name}: {error}") from None
    kind = entry.config.get("type", "native")
    if not isinstance(kind, str) or kind not in _KINDS:
        known = " and ".join(map(repr, _KINDS))
        raise ConfigError(f"{location.name}: config.type={kind!r} is not possible; there are {known}")
    return _KINDS[kind](entry, location)


def _native(entry: ToolFileEntry, location: EntryLocation) -> ToolPlan:
    """The plan of a tool that is a Python class."""
    if entry.class_name is None:
        raise ConfigError(
            f"{location.name} needs a class_name, such as 'my_tools.Calculator' or 'my_tools.py:Calculator'"
        )
    if entry.mcp is not None:
        raise ConfigError(f"{location.name}: `mcp` cannot act without config.type=mcp")
    cls = location.class_of(entry.class_name, BaseTool)
    schema = None if entry.tool_schema is None else read_schema(entry.tool_schema, f"{location.name}: tool_schema")
    return ToolPlan(OneTool(cls(entry.config, schema)), entry.timeout_s, entry.max_concurrent)


def _mcp(entry: ToolFileEntry, location: EntryLocation) -> ToolPlan:
    """The plan of an entry whose tools come from MCP servers."""
    if entry.mcp is None:
        raise ConfigError(f"{location.name} is of type mcp and needs `mcp: {{mcp_servers_config_path: …}}`")
    if entry.tool_schema is not None:
        raise ConfigError(f"{location.name}: tool_schema cannot act: MCP servers give the schemas of their tools")
    try:
        config = _McpConfig(**entry.config)
    except ConfigError as error:
        raise ConfigError(f"{location.name}: config: {error}") from None
    tool_class = McpTool if entry.class_name is None else location.class_of(entry.class_name, McpTool)
    path = entry.mcp.mcp_servers_config_path.expanduser()
    if not path.is_file() and (location.folder / path).is_file():
        path = location.folder / path
    servers = [
        McpServer(name, address, tool_class=tool_class, config=entry.config)
        for name, address in _mcp_servers(path).items()
    ]
    source = McpServers(servers, entry.mcp.tool_selected_list)
    return ToolPlan(source, entry.timeout_s or config.timeout, entry.max_concurrent or config.rate_limit)


def _mcp_servers(path: Path) -> Mapping[str, McpAddress]:
    """The servers in the file that are not disabled, by name. Raises UserError that says what is wrong in it."""
    try:
        data = json.loads(path.expanduser().read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read the MCP servers in {str(path)!r}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{path} is not valid JSON: {error}") from None
    servers = data.get("mcpServers") if isinstance(data, dict) else None
    if not isinstance(servers, dict) or not all(isinstance(entry, dict) for entry in servers.values()):
        raise ConfigError(f"{path} must hold an object `mcpServers` of one object for each server")
    found: dict[str, McpAddress] = {}
    for name, entry in servers.items():
        try:
            if not entry.get("disabled"):
                found[name] = _McpFileEntry(**entry)
        except UserError as error:
            raise ConfigError(f"{path}: mcpServers.{name}: {error}") from None
    return found


_KINDS: Mapping[str, Callable[[ToolFileEntry, EntryLocation], ToolPlan]] = {
    "native": _native,
    "mcp": _mcp,
}
"""Readers of entries, by `config.type`."""
