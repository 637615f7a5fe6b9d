"""One entry of a file of tools, and what a kind of tool needs to make a plan of it.

Knows: verl's keys of the YAML.  Knows not: which kinds there are; `file.py` has their table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pydantic

from ludus.agents.tools.base import BaseTool
from ludus.agents.tools.schema import read_schema
from ludus.agents.tools.source import OneTool, ToolPlan
from ludus.errors import ConfigError
from ludus.settings import Settings

ToolT = TypeVar("ToolT", bound=BaseTool)
Find = Callable[[str], Any]
"""What an import string names. Raises UserError if there is nothing."""


class McpPart(Settings):
    """Which servers, and which of their tools, an entry of type mcp offers."""

    mcp_servers_config_path: Path
    """JSON file; looked for from the working directory, then beside the YAML file."""
    tool_selected_list: tuple[str, ...] | None = None
    """None: all tools of all servers."""


class ToolFileEntry(Settings):
    """One tool, below `tools`."""

    class_name: str | None = None
    """Its class: 'pkg.mod.Name' or 'path/to/file.py:Name'. None: `config.type` is 'mcp', whose tools need no class."""
    config: dict[str, Any] = pydantic.Field(default_factory=dict)
    """What the class is made with. Its `type` is the kind of tool, `native` where it is not given."""
    tool_schema: dict[str, Any] | None = None
    """None: the class says it."""
    mcp: McpPart | None = None
    """With `config.type: mcp` alone."""
    timeout_s: float | None = pydantic.Field(default=None, gt=0)
    """Of one call. None: the run's."""
    max_concurrent: int | None = pydantic.Field(default=None, ge=1)
    """Calls at a time, of all trajectories. None: any number."""


@dataclass(frozen=True, slots=True)
class EntryLocation:
    """Where an entry stands."""

    name: str
    """As error messages call it."""
    folder: Path
    """Of its file."""
    find: Find

    def class_of(self, reference: str, base: type[ToolT]) -> type[ToolT]:
        """The class that an import string names. Raises ConfigError if it is no such tool."""
        cls = self.find(reference)
        if not (isinstance(cls, type) and issubclass(cls, base)):
            raise ConfigError(
                f"{self.name}: class_name={reference!r} must be a subclass of {base.__name__}, but is {cls!r:.200}"
            )
        return cls


def read_native(entry: ToolFileEntry, location: EntryLocation) -> ToolPlan:
    """A tool that a class of Python is."""
    if entry.class_name is None:
        raise ConfigError(
            f"{location.name} needs a class_name, such as 'my_tools.Calculator' or 'my_tools.py:Calculator'"
        )
    if entry.mcp is not None:
        raise ConfigError(f"{location.name}: `mcp` cannot act without config.type=mcp")
    cls = location.class_of(entry.class_name, BaseTool)
    schema = None if entry.tool_schema is None else read_schema(entry.tool_schema, f"{location.name}: tool_schema")
    return ToolPlan(OneTool(cls(entry.config, schema)), entry.timeout_s, entry.max_concurrent)
