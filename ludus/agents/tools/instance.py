"""One tool in one trajectory: created at its first call, called with deadlines, rewarded and released once.

Knows: a tool's methods and the row's arguments for each.  Knows not: messages, other tools.
Invariant: every call of a method of the tool has a time limit.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from ludus.agents.signatures import accepted
from ludus.agents.tools.answer import ToolResult, as_reward, read_answer
from ludus.agents.tools.base import BaseTool
from ludus.agents.tools.deadline import with_deadline
from ludus.errors import UserError
from ludus.settings import did_you_mean
from ludus.types import ToolSpec


@dataclass(frozen=True, slots=True)
class ToolEntry:
    """A tool of a run, and how it may be called."""

    tool: BaseTool
    spec: ToolSpec
    timeout_s: float | None
    """Time limit of one call of any of its methods. None: no limit."""
    slots: asyncio.Semaphore | None = None
    """One slot for each call that may run at a time, over all trajectories. None: no limit."""


@dataclass(frozen=True, slots=True)
class ToolKwargs:
    """A row's arguments for the methods of one tool."""

    create_kwargs: Mapping[str, Any] = field(default_factory=dict)
    execute_kwargs: Mapping[str, Any] = field(default_factory=dict)
    calc_reward_kwargs: Mapping[str, Any] = field(default_factory=dict)
    release_kwargs: Mapping[str, Any] = field(default_factory=dict)

    def check(self, tool: BaseTool) -> None:
        """Raises UserError for an argument that a method of the tool does not accept."""
        for name in ("create", "execute", "calc_reward", "release"):
            method: Callable[..., Any] = getattr(tool, name)
            given: Mapping[str, Any] = getattr(self, f"{name}_kwargs")
            # BaseTool's own take whatever they are given and read none of it.
            is_basic = getattr(method, "__func__", None) is getattr(BaseTool, name)
            taken = frozenset() if is_basic else _accepted(method)
            if taken is None or (name == "create" and "create_kwargs" in taken):
                continue
            for key in sorted(given.keys() - taken):
                raise UserError(
                    f"tools_kwargs gives {key!r} to {name} of the tool {tool.name!r}, which takes "
                    f"{', '.join(sorted(taken)) or 'nothing'}{did_you_mean(key, taken)}"
                )


class ToolInstance:
    """A tool's instance for one trajectory."""

    def __init__(self, entry: ToolEntry, kwargs: ToolKwargs) -> None:
        self.entry = entry
        self._kwargs = kwargs
        self._id: str | None = None
        self._creating = asyncio.Lock()

    @property
    def is_used(self) -> bool:
        return self._id is not None

    async def execute(
        self, arguments: dict[str, Any], agent_data: Any, on_begin: Callable[[], None] = lambda: None
    ) -> ToolResult:
        """Run one call. on_begin: called when the call has a slot.

        Raises DeadlineError, ToolError, and whatever the tool raises.
        """
        tool = self.entry.tool
        kwargs = dict(self._kwargs.execute_kwargs)
        if agent_data is not None and _takes(tool.execute, "agent_data"):
            kwargs["agent_data"] = agent_data
        timeout_s = self.entry.timeout_s
        if tool.keeps_time:
            kwargs["timeout_s"], timeout_s = timeout_s, None
        async with self.entry.slots or nullcontext():
            on_begin()
            instance_id = await self._opened()
            return read_answer(await with_deadline(tool.execute(instance_id, arguments, **kwargs), timeout_s))

    async def calc_reward(self) -> float | None:
        """The tool's reward for the trajectory. Raises as `execute` does."""
        assert self._id is not None, "only a tool that was used is asked"
        call = self.entry.tool.calc_reward(self._id, **self._kwargs.calc_reward_kwargs)
        reward = await with_deadline(call, self.entry.timeout_s)
        return None if reward is None else as_reward(reward)

    async def release(self) -> None:
        """Release the instance. Raises as `execute` does."""
        assert self._id is not None, "only a tool that was used is released"
        await with_deadline(self.entry.tool.release(self._id, **self._kwargs.release_kwargs), self.entry.timeout_s)

    async def _opened(self) -> str:
        async with self._creating:  # calls of one answer run at the same time
            if self._id is None:
                tool, given = self.entry.tool, dict(self._kwargs.create_kwargs)
                offered = {**given, "create_kwargs": given}
                kwargs = {name: value for name, value in offered.items() if _takes(tool.create, name)}
                # verl's loops give `create_kwargs` alone, and a tool written for them may take nothing else
                takes_no_id = next(iter(inspect.signature(tool.create).parameters), None) == "create_kwargs"
                own = () if takes_no_id else (uuid4().hex,)
                created: Any = await with_deadline(tool.create(*own, **kwargs), self.entry.timeout_s)
                self._id = created[0] if isinstance(created, tuple) else created
            return self._id


def _takes(method: Callable[..., Any], name: str) -> bool:
    taken = _accepted(method)
    return taken is None or name in taken


def _accepted(method: Callable[..., Any]) -> frozenset[str] | None:
    """Argument names that the method accepts, besides those it always gets. None: any."""
    names = accepted(method)
    return None if names is None else names - {"instance_id", "parameters", "timeout_s"}
