"""The JSON file that names MCP servers, as desktop programs and verl write it.

Knows: its keys.  Knows not: servers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from ludus.agents.tools.mcp import McpAddress
from ludus.errors import ConfigError, UserError


class McpFileEntry(McpAddress):
    """One server, below `mcpServers`."""

    type: Literal["stdio", "http", "streamable-http", "streamableHttp"] | None = None
    """None: `stdio` with a command, `http` with a url. The older `sse` is not spoken."""
    disabled: bool = False


def read_mcp_file(path: Path) -> Mapping[str, McpAddress]:
    """The servers of the file that are not disabled, by name. Raises UserError that says what of it cannot be."""
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
                found[name] = McpFileEntry(**entry)
        except UserError as error:
            raise ConfigError(f"{path}: mcpServers.{name}: {error}") from None
    return found
