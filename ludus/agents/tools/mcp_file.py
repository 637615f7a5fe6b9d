"""The JSON file that names MCP servers, as desktop programs and verl write it.

Knows: its keys.  Knows not: servers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pydantic

from ludus.agents.tools.mcp import McpAddress
from ludus.errors import ConfigError, UserError
from ludus.settings import Settings


class McpFileEntry(Settings):
    """One server, below `mcpServers`."""

    command: str | None = None
    args: tuple[str, ...] = ()
    env: dict[str, str] = pydantic.Field(default_factory=dict)
    cwd: str | None = None
    url: str | None = None
    headers: dict[str, str] = pydantic.Field(default_factory=dict)
    auth_token: str | None = None
    """Sent as `Authorization: Bearer …`."""
    type: Literal["stdio", "http", "streamable-http", "streamableHttp"] | None = None
    """None: `stdio` with a command, `http` with a url. The older `sse` is not spoken."""
    disabled: bool = False

    @property
    def address(self) -> McpAddress:
        token = {} if self.auth_token is None else {"Authorization": f"Bearer {self.auth_token}"}
        headers = {**token, **self.headers}
        return McpAddress(self.command, self.args, self.env, self.cwd, self.url, headers)


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
    return dict(_read(entry, name, path) for name, entry in servers.items() if not entry.get("disabled"))


def _read(entry: Mapping[str, Any], name: str, path: Path) -> tuple[str, McpAddress]:
    try:
        return name, McpFileEntry(**entry).address
    except UserError as error:
        raise ConfigError(f"{path}: mcpServers.{name}: {error}") from None
