"""Entries of a file of tools whose tools MCP servers offer.

Knows: verl's keys of such an entry.  Knows not: how a server is asked.
"""

from __future__ import annotations

from typing import Literal

import pydantic

from ludus.agents.tools.entry import EntryLocation, ToolFileEntry
from ludus.agents.tools.mcp import McpServer, McpServers, McpTool
from ludus.agents.tools.mcp_file import read_mcp_file
from ludus.agents.tools.source import ToolPlan
from ludus.errors import ConfigError
from ludus.settings import Settings


class McpConfig(Settings):
    """The `config` of an entry of type mcp."""

    type: Literal["mcp"]
    timeout: float | None = pydantic.Field(default=None, gt=0)
    """verl's name of `timeout_s`."""
    rate_limit: int | None = pydantic.Field(default=None, ge=1)
    """verl's name of `max_concurrent`."""


def read_mcp(entry: ToolFileEntry, location: EntryLocation) -> ToolPlan:
    """Tools that MCP servers offer."""
    if entry.mcp is None:
        raise ConfigError(f"{location.name} is of type mcp and needs `mcp: {{mcp_servers_config_path: …}}`")
    if entry.tool_schema is not None:
        raise ConfigError(f"{location.name}: tool_schema cannot act: MCP servers give the schemas of their tools")
    try:
        config = McpConfig(**entry.config)
    except ConfigError as error:
        raise ConfigError(f"{location.name}: config: {error}") from None
    tool_class = McpTool if entry.class_name is None else location.class_of(entry.class_name, McpTool)
    path = entry.mcp.mcp_servers_config_path.expanduser()
    if not path.is_file() and (location.folder / path).is_file():
        path = location.folder / path
    servers = [
        McpServer(name, address, tool_class=tool_class, config=entry.config)
        for name, address in read_mcp_file(path).items()
    ]
    source = McpServers(servers, entry.mcp.tool_selected_list)
    return ToolPlan(source, entry.timeout_s or config.timeout, entry.max_concurrent or config.rate_limit)
