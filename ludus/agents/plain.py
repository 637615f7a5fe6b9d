"""An agent that reaches the model through an SDK: a class, an instance, an async function or a closure.

Knows: signatures.  Knows not: sessions, rewards, threads.
Invariant: the agent is called as `run(data, base_url=…, api_key=…, http_client=…)`, with only those arguments that it
accepts, and every episode gets a copy of its row.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ludus.agents.adapter import EpisodeContext
from ludus.agents.signatures import accepted, is_async
from ludus.errors import UserError
from ludus.settings import did_you_mean

FORMS = (
    "a class or an instance with `async def run(self, data, **extra_kwargs)`, an async function, "
    "or an import string: 'pkg.mod:Name', 'pkg.mod.Name' or 'path/to/file.py:Name'"
)


@dataclass(frozen=True, slots=True)
class WorkflowAdapter:
    """A resolved agent, ready to play one row."""

    name: str
    function: Callable[..., Awaitable[object] | object]
    """May be a plain function only if it has a process of its own."""
    accepted: frozenset[str] | None
    """Keyword arguments that the function accepts. None: any."""
    extra_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """The `workflow_kwargs` of a bare function; those of a class went to its constructor."""

    async def play(self, data: Mapping[str, Any], context: EpisodeContext) -> object:
        """Play this row; returns what the agent returned."""
        injected = {"base_url": context.base_url, "api_key": context.api_key, "http_client": context.http_client}
        if self.accepted is not None:
            injected = {name: value for name, value in injected.items() if name in self.accepted}
        returned = self.function(Row(copy.deepcopy(dict(data))), **injected, **self.extra_kwargs)
        return await returned if inspect.isawaitable(returned) else returned

    async def setup(self) -> None:
        """Does nothing: the agent was set up when it was made."""

    async def close(self) -> None:
        """Does nothing: the agent closes what it made itself."""


class Row(dict[str, Any]):
    """A row whose KeyError lists its columns."""

    def __missing__(self, name: str) -> Any:
        hint = did_you_mean(str(name), map(str, self))
        raise KeyError(f"the row has no column {name!r}{hint} It has: {', '.join(map(str, self))}")


def from_workflow(workflow: object, kwargs: Mapping[str, Any], *, may_block: bool = False) -> WorkflowAdapter:
    """The adapter for a class, an instance or an async function; a class is instantiated here, once, with `kwargs`.

    may_block: the agent has a process of its own and need not be async.
    Raises UserError that describes `workflow` if it has no async `run`.
    """
    name = getattr(workflow, "__qualname__", type(workflow).__qualname__)
    if inspect.isclass(workflow):
        workflow = construct(workflow, kwargs)
        if not callable(getattr(workflow, "run", None)):
            raise UserError(f"the workflow {name} has no method `run`; pass {FORMS}")
    elif inspect.isroutine(workflow) or not callable(getattr(workflow, "run", None)):
        return _from_function(workflow, name, kwargs, may_block)
    else:
        refuse_kwargs(workflow, kwargs)
    run: Any = getattr(workflow, "run", None)
    _check_callable(run, f"{name}.run", may_block)
    return WorkflowAdapter(name=name, function=run, accepted=accepted(run, skip=1))


def refuse_kwargs(instance: object, kwargs: Mapping[str, Any]) -> None:
    """Raises UserError if there are `kwargs`: an instance is already constructed."""
    if kwargs:
        raise UserError(
            f"workflow_kwargs {sorted(kwargs)} cannot act on an instance of {type(instance).__name__}; "
            "pass its class, or give them to its constructor yourself"
        )


def construct(cls: type, kwargs: Mapping[str, Any]) -> object:
    """An instance of `cls`. Raises UserError if it cannot be made with `kwargs`."""
    try:
        inspect.signature(cls).bind(**kwargs)
    except TypeError as error:
        raise UserError(f"{cls.__qualname__} cannot be made with workflow_kwargs={dict(kwargs)}: {error}") from None
    except ValueError:  # built in C, no signature to check against
        pass
    return cls(**kwargs)


def _from_function(function: Any, name: str, kwargs: Mapping[str, Any], may_block: bool) -> WorkflowAdapter:
    if not callable(function):
        raise UserError(f"the workflow is {function!r:.200} of type {type(function).__name__}; pass {FORMS}")
    _check_callable(function, name, may_block)
    taken = accepted(function, skip=1)
    unknown = sorted(set(kwargs) - taken) if taken is not None else []
    if unknown:
        known = ", ".join(sorted(taken or ()))
        raise UserError(f"{name} takes no argument {unknown[0]!r} (from workflow_kwargs); it takes: {known}")
    return WorkflowAdapter(name=name, function=function, accepted=taken, extra_kwargs=kwargs)


def _check_callable(function: Any, name: str, may_block: bool) -> None:
    if not (may_block or is_async(function)):
        raise UserError(
            f"{name} must be async (`async def`); blocking calls inside it are fine. "
            "With rollout.agent.mode=subproc it need not be"
        )
    parameters = list(inspect.signature(function).parameters.values())
    by_name_alone = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
    if not parameters or parameters[0].kind in by_name_alone:
        raise UserError(f"{name} must take the row as its first argument: `async def run(self, data, **extra_kwargs)`")
