"""Files of tools: verl's YAML, and Python files with functions marked `@function_tool`.

Knows: the kinds of tools.  Knows not: what the tools do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ludus.agents.tools.entry import EntryLocation, Find, ToolFileEntry, read_native
from ludus.agents.tools.function import FunctionTool, functions_of
from ludus.agents.tools.mcp_entry import read_mcp
from ludus.agents.tools.source import ToolPlan
from ludus.errors import ConfigError, UserError
from ludus.settings import import_file, import_object, load_yaml

KINDS: Mapping[str, Callable[[ToolFileEntry, EntryLocation], ToolPlan]] = {
    "native": read_native,
    "mcp": read_mcp,
}
"""By the `config.type` of an entry what makes a plan of it."""


def read_tool_file(path: Path, find: Find = import_object) -> list[ToolPlan]:
    """The tools of a YAML file. find: the class that an import string names.

    Raises UserError that says which entry cannot be.
    """
    data = load_yaml(path, "the tools in")
    entries = data.get("tools") if isinstance(data, dict) else None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ConfigError(f"{path} must hold `tools`, a list of mappings")
    folder = path.expanduser().parent
    return [_plan(entry, EntryLocation(f"{path}: tools.{idx}", folder, find)) for idx, entry in enumerate(entries)]


def read_function_file(path: Path) -> Sequence[FunctionTool]:
    """The tools that a Python file marks, in the order of their definition. Raises UserError if it marks none."""
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
    if not isinstance(kind, str) or kind not in KINDS:
        known = " and ".join(map(repr, KINDS))
        raise ConfigError(f"{location.name}: config.type={kind!r} is not possible; there are {known}")
    return KINDS[kind](entry, location)
