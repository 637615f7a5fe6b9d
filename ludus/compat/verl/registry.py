"""Agent loops by name: those that code registers, and those that a run's YAML names.

Knows: names, classes, the keys of the YAML.  Knows not: rows, episodes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ludus.compat.names import find_class
from ludus.compat.verl.base import AgentLoopBase
from ludus.errors import ConfigError, UserError
from ludus.import_strings import import_object
from ludus.settings import did_you_mean, load_yaml

logger = logging.getLogger(__name__)
LoopT = TypeVar("LoopT", bound=type[AgentLoopBase])

SHIPPED = {
    "single_turn_agent": "ludus.compat.verl.single:SingleTurnAgentLoop",
    "tool_agent": "ludus.compat.verl.tool_loop:ToolAgentLoop",
}
"""Loops that come with Ludus; a loop that code registers by one of these names stands in its place."""
_REGISTRY: dict[str, LoopSpec] = {}


@dataclass(frozen=True, slots=True)
class LoopSpec:
    """A loop's class, and what its objects are made with beside what all get."""

    cls: type[AgentLoopBase]
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.cls.__module__}.{self.cls.__qualname__}"


def register(agent_name: str) -> Callable[[LoopT], LoopT]:
    """Makes the class the agent loop that rows call `agent_name`. The last class of a name counts."""
    if not isinstance(agent_name, str) or not agent_name:
        raise UserError(f"@register needs a name, such as @register('my_agent'), got {agent_name!r:.100}")

    def enter(cls: LoopT) -> LoopT:
        spec, known = LoopSpec(cls), _REGISTRY.get(agent_name)
        if known is not None and known.name != spec.name:
            logger.warning("the agent loop %r was %s and is %s from now on", agent_name, known.name, spec.name)
        _REGISTRY[agent_name] = spec
        return cls

    return enter


def registered_loops(config_path: str | None = None) -> dict[str, LoopSpec]:
    """All loops by name; those of the YAML stand in front of those that code has registered.

    Raises UserError if the file cannot be read, ConfigError if an entry is wrong.
    """
    shipped = {name: LoopSpec(import_object(target)) for name, target in SHIPPED.items()}
    return {**shipped, **_REGISTRY, **({} if config_path is None else read_loops(Path(config_path).expanduser()))}


def find_loop(loops: Mapping[str, LoopSpec], name: object) -> LoopSpec:
    """Raises UserError that names the nearest, and all that there are."""
    if isinstance(name, str) and name in loops:
        return loops[name]
    hint = did_you_mean(str(name), loops)
    raise UserError(f"there is no agent loop {name!r}{hint} There are: {', '.join(sorted(loops))}")


def read_loops(path: Path) -> dict[str, LoopSpec]:
    """The loops of a YAML file: a list of entries with `name`, `_target_` and the arguments of its constructor."""
    entries = load_yaml(path, "the agent loops in")
    if not isinstance(entries, list):
        raise ConfigError(f"{path} must hold a list of agent loops, but holds a {type(entries).__name__}")
    return dict(_read_entry(entry, f"{path}: entry {idx}") for idx, entry in enumerate(entries))


def _read_entry(entry: Any, where: str) -> tuple[str, LoopSpec]:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str) or "_target_" not in entry:
        raise ConfigError(f"{where} must have a `name` and a `_target_`, got {entry!r:.200}")
    cls = find_class(entry["_target_"], AgentLoopBase, f"{where}: _target_")
    kwargs = {key: value for key, value in entry.items() if key not in ("name", "_target_")}
    nested = [key for key, value in kwargs.items() if isinstance(value, Mapping) and "_target_" in value]
    if nested:
        raise ConfigError(f"{where}: {nested[0]!r} has a `_target_` of its own, which is not made; make it in __init__")
    return entry["name"], LoopSpec(cls, kwargs)
