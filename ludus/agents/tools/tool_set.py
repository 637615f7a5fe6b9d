"""All tools of a run, read once from files and objects, and opened for each trajectory.

Knows: sources of tools, a row's selection and arguments.  Knows not: running trajectories, models.
Invariant: names of tools are unique, and every tool that a row names exists.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ludus.agents.tools.answer import ToolLimits
from ludus.agents.tools.base import BaseTool
from ludus.agents.tools.episode_tools import EpisodeTools
from ludus.agents.tools.file import Find, read_function_file, read_tool_file
from ludus.agents.tools.instance import ToolEntry, ToolInstance, ToolKwargs
from ludus.agents.tools.schema import spec_of
from ludus.agents.tools.source import ToolPlan, plan_of
from ludus.errors import UserError
from ludus.import_strings import import_object
from ludus.settings import did_you_mean
from ludus.text.tokenizer import Tokenizer
from ludus.types import ToolSpec

logger = logging.getLogger(__name__)

_KINDS = tuple(ToolKwargs.__dataclass_fields__)


class ToolSet:
    """The tools of a run. `setup` before the first `open` and `close` after the last, on one event loop."""

    def __init__(self, plans: Sequence[ToolPlan], limits: ToolLimits) -> None:
        self._plans = tuple(plans)
        self._limits = limits
        self._open_plans: list[ToolPlan] = []
        self._entries: dict[str, ToolEntry] = {}
        self._warned_of: set[tuple[str, type[BaseException]]] = set()

    def __repr__(self) -> str:
        return f"ToolSet({', '.join(self._entries) or f'{len(self._plans)} sources, not set up'})"

    @classmethod
    def load(
        cls,
        tool_config_path: Path | str | None = None,
        function_tool_path: Path | str | None = None,
        tools: Sequence[Any] = (),
        *,
        limits: ToolLimits | None = None,
        find: Find = import_object,
    ) -> ToolSet:
        """The tools of a YAML file in verl's form, those marked `@function_tool` in a Python file, and `tools`.

        tools: each a BaseTool, a function, a source of tools, or an import string of one.
        find: (import string): a class that the YAML file names.
        Raises UserError that says what is missing or wrong in which file.
        """
        plans: list[ToolPlan] = []
        if tool_config_path is not None:
            plans += read_tool_file(Path(tool_config_path), find)
        if function_tool_path is not None:
            plans += map(plan_of, read_function_file(Path(function_tool_path)))
        plans += map(plan_of, tools)
        return cls(plans, limits or ToolLimits())

    @property
    def tools(self) -> tuple[BaseTool, ...]:
        """All tools; none before `setup`."""
        return tuple(entry.tool for entry in self._entries.values())

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """All tools, in the form of a request; none before `setup`."""
        return tuple(entry.spec for entry in self._entries.values())

    async def setup(self) -> None:
        """Start what the tools need. If two have the same name, everything is closed again and UserError raised."""
        try:
            for plan in self._plans:
                tools = await plan.source.setup()
                self._open_plans.append(plan)
                for tool in tools:
                    self._add(tool, plan)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """End what `setup` started, in reverse order; failures are logged as warnings."""
        self._entries = {}
        while self._open_plans:
            plan = self._open_plans.pop()
            try:
                await plan.source.close()
            except Exception:  # the others must be closed all the same
                logger.warning("%r could not be closed", plan.source, exc_info=True)

    def open(
        self,
        tools_kwargs: Mapping[str, Any] | None = None,
        selection: Sequence[str] | None = None,
        *,
        tokenizer: Tokenizer | None = None,
        agent_data: Any = None,
        own: Sequence[BaseTool] = (),
        limits: ToolLimits | None = None,
    ) -> EpisodeTools:
        """The tools for one trajectory.

        tools_kwargs: by tool, `{create_kwargs, execute_kwargs, calc_reward_kwargs, release_kwargs}`, each optional.
        selection: names of the tools it may use. None: all.  tokenizer: counts the tokens of answers. None: they are
        not limited.  agent_data: passed to every `execute` that accepts it.  own: further tools of this trajectory
        only, which need no `setup`.  limits: of their answers' lengths. None: the run's.
        Raises UserError if a row names a tool that does not exist.
        """
        names = list(self._entries) if selection is None else [self._known(name, "selects") for name in selection]
        entries = {**self._entries, **{tool.name: self._entry(tool) for tool in own}}
        names += [tool.name for tool in own]
        kwargs = {
            name if name in entries else self._known(name, "gives arguments to"): _read_kwargs(name, given)
            for name, given in (tools_kwargs or {}).items()
            if given is not None  # a column of a table holds every key that any of its rows has
        }
        for name, given in kwargs.items():
            given.check(entries[name].tool)
        instances = {
            name: ToolInstance(entry, kwargs.get(name, ToolKwargs()))
            for name, entry in entries.items()
            if name in names
        }
        return EpisodeTools(
            instances, limits=limits or self._limits, tokenizer=tokenizer, agent_data=agent_data, warn=self._warn
        )

    def _add(self, tool: BaseTool, plan: ToolPlan) -> None:
        known = self._entries.get(tool.name)
        if known is not None:
            raise UserError(f"two tools are called {tool.name!r}: {known.tool!r} and {tool!r}; rename one of them")
        self._entries[tool.name] = self._entry(tool, max_concurrent=plan.max_concurrent, timeout_s=plan.timeout_s)

    def _entry(self, tool: BaseTool, *, max_concurrent: int | None = None, timeout_s: float | None = None) -> ToolEntry:
        """None: the tool's own limit, else the run's."""
        assert tool.tool_schema is not None, f"{tool!r} called BaseTool.__init__"
        most = tool.max_concurrent if max_concurrent is None else max_concurrent
        slots = None if most is None else asyncio.Semaphore(most)
        longest_s = self._limits.timeout_s if timeout_s is None else timeout_s
        return ToolEntry(tool, spec_of(tool.tool_schema), longest_s, slots)

    def _known(self, name: str, verb: str) -> str:
        if name not in self._entries:
            hint = did_you_mean(name, self._entries)
            raise UserError(f"the row {verb} the tool {name!r}{hint} There are: {', '.join(self._entries) or 'none'}")
        return name

    def _warn(self, name: str, error: BaseException) -> None:
        place = (name, type(error))
        level = logging.DEBUG if place in self._warned_of else logging.WARNING
        self._warned_of.add(place)  # a tool that is broken fails in every episode
        logger.log(level, "the tool %r failed", name, exc_info=error)


def _read_kwargs(name: str, given: Any) -> ToolKwargs:
    if not isinstance(given, Mapping):
        raise UserError(f"tools_kwargs of {name!r} must be a mapping of {', '.join(_KINDS)}, got {given!r:.200}")
    for kind, kwargs in given.items():
        if kind not in _KINDS:
            hint = did_you_mean(kind, _KINDS)
            raise UserError(f"tools_kwargs of {name!r} has the unknown key {kind!r}{hint} Known: {', '.join(_KINDS)}")
        if kwargs is not None and not isinstance(kwargs, Mapping):
            raise UserError(f"tools_kwargs: {kind} of {name!r} must be a mapping, got {kwargs!r:.200}")
    return ToolKwargs(**{kind: dict(kwargs) for kind, kwargs in given.items() if kwargs is not None})
