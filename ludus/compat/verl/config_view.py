"""A view of the run's configuration for agent loops: nested, by attribute or key, with verl's names.

Knows: mappings.  Knows not: which settings a run has; `resources` builds it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ludus.settings import did_you_mean


class LoopConfig(Mapping[str, Any]):
    """A read-only tree: `config.actor_rollout_ref.rollout.prompt_length`, `config["data"].get("key", default)`."""

    def __init__(self, values: Mapping[str, Any], path: str = "config") -> None:
        self._values = {
            key: LoopConfig(value, f"{path}.{key}") if isinstance(value, Mapping) else value
            for key, value in values.items()
        }
        self._path = path

    def __repr__(self) -> str:
        return f"LoopConfig({self._path}: {', '.join(self._values)})"

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # copying and pickling ask for these before there are values
            raise AttributeError(name)
        if name not in self._values:
            hint = did_you_mean(name, self._values)
            raise AttributeError(f"{self._path} has no {name!r}{hint} It has: {', '.join(self._values) or 'nothing'}")
        return self._values[name]


class ToolListWrap:
    """The `tools` argument of a loop's constructor. Not a dataclass, as Hydra, with which users make loops, unpacks
    those."""

    def __init__(self, tools: Sequence[Any]) -> None:
        """tools: those of the run, each with `name` and `tool_schema`."""
        self.tools = tools

    def __repr__(self) -> str:
        return f"ToolListWrap({', '.join(str(tool.name) for tool in self.tools)})"


@dataclass(frozen=True, slots=True)
class DictConfigWrap:
    """The `trainer_config` argument of a loop's constructor."""

    config: Any
    """The configuration, a `LoopConfig` in a run."""
    run: Any = None
    """Tools and simulated users of the run, for the loops that come with Ludus. None: there are none."""
