"""Tools and resources of MCP servers, and scenarios: tasks for agents that use them.

Knows: tools and resources in MCP's form.  Knows not: MCP's protocol, models.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, overload

from rich.console import Console

from ludus.errors import UserError

DIFFICULTIES = range(1, 6)
_PREVIEW_CHARACTERS = 120

complete_task_tool: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": "complete_task",
        "description": "Say that the task is done, and what came of it. Call it once, at the end.",
        "parameters": {
            "type": "object",
            "properties": {"summary": {"type": "string", "description": "What was done, and the answer to the task."}},
            "required": ["summary"],
        },
    },
}
"""A tool with which an agent ends its episode."""


@dataclass(frozen=True)
class MCPTool:
    """A tool of a server. `parameters` is a JSON schema."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """From a mapping in MCP's form, with `inputSchema`, or with `parameters`. Raises UserError if it has no
        name."""
        name = data.get("name")
        if not isinstance(name, str) or not name:
            raise UserError(f"a tool needs a name, but is {dict(data)!r:.100}")
        schema = data.get("parameters") or data.get("inputSchema") or data.get("input_schema") or {}
        return cls(name, data.get("description") or "", schema)

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}

    def to_tool_schema(self) -> dict[str, Any]:
        """The tool in the form of a request's `tools`."""
        return {"type": "function", "function": self.to_dict()}


@dataclass(frozen=True)
class MCPResource:
    """A resource of a server."""

    uri: str
    name: str = ""
    description: str = ""
    mime_type: str | None = None

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        mime_type = data.get("mimeType") or data.get("mime_type")
        return cls(str(data.get("uri", "")), data.get("name") or "", data.get("description") or "", mime_type)

    def to_dict(self) -> dict[str, Any]:
        about = {"uri": self.uri, "name": self.name, "description": self.description}
        return about if self.mime_type is None else {**about, "mimeType": self.mime_type}


@dataclass(frozen=True)
class GeneratedScenario:
    """A task for an agent, and how hard it is, from 1 to 5."""

    task: str
    difficulty: int

    def __post_init__(self) -> None:
        if not isinstance(self.difficulty, int) or self.difficulty not in DIFFICULTIES:
            raise UserError(f"difficulty={self.difficulty!r} must be a whole number from 1 to 5")

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        for name in ("task", "difficulty"):
            if name not in data:
                raise UserError(f"a scenario needs {name!r}, but has {', '.join(map(repr, data)) or 'nothing'}")
        return cls(data["task"], data["difficulty"])

    def to_dict(self) -> dict[str, Any]:
        return {"task": self.task, "difficulty": self.difficulty}

    def preview(self, max_length: int = _PREVIEW_CHARACTERS) -> str:
        """The task, shortened to `max_length` characters."""
        return self.task if len(self.task) <= max_length else self.task[:max_length].strip() + "…"


class GeneratedScenarioCollection(Sequence[GeneratedScenario]):
    """A sequence of scenarios; `to_dicts` returns them as rows of a dataset."""

    def __init__(self, scenarios: Iterable[GeneratedScenario]) -> None:
        self.scenarios = list(scenarios)

    def __repr__(self) -> str:
        return f"GeneratedScenarioCollection({len(self)} scenarios)"

    @classmethod
    def from_dicts(cls, data: Iterable[Mapping[str, Any]]) -> Self:
        return cls(map(GeneratedScenario.from_dict, data))

    @classmethod
    def from_json(cls, json_str: str) -> Self:
        """Read what `to_json` wrote, or a plain list. Raises UserError for anything else."""
        try:
            data = json.loads(json_str)
            entries = data["scenarios"] if isinstance(data, dict) else data
            return cls.from_dicts(entries)
        except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"these are no scenarios in JSON: {type(error).__name__}: {error}") from None

    def to_dicts(self) -> list[dict[str, Any]]:
        return [scenario.to_dict() for scenario in self.scenarios]

    def to_json(self, indent: int | None = None) -> str:
        return json.dumps({"scenarios": self.to_dicts()}, indent=indent)

    def __len__(self) -> int:
        return len(self.scenarios)

    def __iter__(self) -> Iterator[GeneratedScenario]:
        return iter(self.scenarios)

    @overload
    def __getitem__(self, index: int) -> GeneratedScenario: ...
    @overload
    def __getitem__(self, index: slice) -> list[GeneratedScenario]: ...
    def __getitem__(self, index: int | slice) -> GeneratedScenario | list[GeneratedScenario]:
        return self.scenarios[index]

    def shuffle(self, seed: int = 0) -> GeneratedScenarioCollection:
        """The same scenarios, shuffled by `seed`."""
        shuffled = list(self.scenarios)
        random.Random(seed).shuffle(shuffled)
        return GeneratedScenarioCollection(shuffled)

    def split(self, train_size: int) -> tuple[GeneratedScenarioCollection, GeneratedScenarioCollection]:
        """The first `train_size` scenarios, and the rest. Raises UserError if there are fewer."""
        if not 0 <= train_size <= len(self):
            raise UserError(f"train_size={train_size} must be from 0 to the number of scenarios, {len(self)}")
        return tuple(map(GeneratedScenarioCollection, (self.scenarios[:train_size], self.scenarios[train_size:])))  # type: ignore[return-value]

    def filter_by_difficulty(self, min_difficulty: int = 1, max_difficulty: int = 5) -> GeneratedScenarioCollection:
        return GeneratedScenarioCollection(
            scenario for scenario in self.scenarios if min_difficulty <= scenario.difficulty <= max_difficulty
        )

    def get_difficulty_distribution(self) -> Counter[int]:
        return Counter(scenario.difficulty for scenario in self.scenarios)

    def get_summary(self) -> dict[str, Any]:
        """Number, distribution of difficulties, and means; the means of none are 0."""
        count = max(1, len(self))
        return {
            "total_scenarios": len(self),
            "difficulty_distribution": dict(self.get_difficulty_distribution()),
            "avg_difficulty": sum(scenario.difficulty for scenario in self.scenarios) / count,
            "avg_task_length": sum(len(scenario.task) for scenario in self.scenarios) / count,
        }

    def preview(self, n: int = 5, max_task_length: int = _PREVIEW_CHARACTERS) -> None:
        """Shows the first `n` on the terminal."""
        console = Console(highlight=False, markup=False)
        for number, scenario in enumerate(self.scenarios[:n], start=1):
            console.print(f"{number}. {scenario.preview(max_task_length)} (difficulty {scenario.difficulty}/5)")

    def print_difficulty_distribution(self) -> None:
        """Shows how many there are of each difficulty."""
        counts, console = self.get_difficulty_distribution(), Console(highlight=False)
        for difficulty in DIFFICULTIES:
            console.print(f"{difficulty}/5: {counts[difficulty]:3d}  {'█' * min(counts[difficulty], 30)}")


def preview_scenarios(scenarios: Iterable[Mapping[str, Any]], n: int = 5) -> None:
    """Shows the first `n` of scenarios as mappings."""
    GeneratedScenarioCollection(map(GeneratedScenario.from_dict, scenarios)).preview(n)
