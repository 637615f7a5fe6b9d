"""A user's agent, however it was given: class, instance, async function, closure or import string.

Knows: import strings, signatures.  Knows not: sessions, rewards, threads.
Invariant: the agent is called as `run(data, base_url=…, api_key=…, http_client=…)`, with only what it accepts,
and every episode gets a copy of its row.
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from ludus.errors import UserError
from ludus.settings import nearest

_FORMS = (
    "a class or an instance with `async def run(self, data, **extra_kwargs)`, an async function, "
    "or an import string: 'pkg.mod:Name', 'pkg.mod.Name' or 'path/to/file.py:Name'"
)


@dataclass(frozen=True, slots=True)
class EpisodeContext:
    """What is injected into one run of an agent."""

    base_url: str
    api_key: str
    http_client: Any
    """An httpx (or httpx2) client that reaches the base_url; the episode's own, and closed when it ends."""


@dataclass(frozen=True, slots=True)
class AgentRun:
    """A resolved agent, ready to play one row."""

    name: str
    function: Callable[..., Awaitable[object]]
    accepted: frozenset[str] | None
    """Keyword arguments the function takes. None: all."""
    extra_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """workflow_kwargs of a bare function; those of a class went into its constructor."""

    async def play(self, data: Mapping[str, Any], context: EpisodeContext) -> object:
        """What the agent returned for this row."""
        injected = {"base_url": context.base_url, "api_key": context.api_key, "http_client": context.http_client}
        if self.accepted is not None:
            injected = {name: value for name, value in injected.items() if name in self.accepted}
        return await self.function(_Row(copy.deepcopy(dict(data))), **injected, **self.extra_kwargs)


class _Row(dict[str, Any]):
    """A row that names its columns when one is missing."""

    def __missing__(self, name: str) -> Any:
        best = nearest(str(name), map(str, self))
        hint = f"; did you mean {best!r}?" if best else ""
        raise KeyError(f"the row has no column {name!r}{hint} It has: {', '.join(map(str, self))}")


def resolve_workflow(workflow: object, kwargs: Mapping[str, Any] | None = None) -> AgentRun:
    """The agent behind `workflow`; a class is instantiated here, once, with `kwargs`.

    Raises UserError that names what was got where there is no async `run` to call.
    """
    kwargs = dict(kwargs or {})
    if workflow is None:
        raise UserError(f"no workflow was given; pass {_FORMS}")
    if isinstance(workflow, str):
        workflow = import_object(workflow)
    if inspect.isclass(workflow):
        return _from_instance(_construct(workflow, kwargs), workflow.__qualname__)
    if inspect.isfunction(workflow) or inspect.ismethod(workflow) or not callable(getattr(workflow, "run", None)):
        return _from_function(workflow, kwargs)
    if kwargs:
        raise UserError(
            f"workflow_kwargs {sorted(kwargs)} cannot act on an instance of {type(workflow).__name__}; "
            "pass its class, or give them to its constructor yourself"
        )
    return _from_instance(workflow, type(workflow).__qualname__)


def import_object(reference: str) -> Any:
    """The object an import string names. Raises UserError that says which part of it could not be found."""
    module_name, colon, attribute = reference.partition(":")
    if not colon:
        module_name, _, attribute = reference.rpartition(".")
    if not module_name or not attribute:
        raise UserError(f"{reference!r} is no import string; allowed: 'pkg.mod:Name', 'path/to/file.py:Name'")
    module = _import_file(Path(module_name)) if module_name.endswith(".py") else _import_module(module_name, reference)
    found: Any = module
    for name in attribute.split("."):
        if name not in dir(found):
            best = nearest(name, [known for known in dir(found) if not known.startswith("_")])
            raise UserError(f"{module_name!r} has no {name!r}" + (f"; did you mean {best!r}?" if best else ""))
        found = getattr(found, name)
    return found


def _construct(cls: type, kwargs: Mapping[str, Any]) -> object:
    try:
        inspect.signature(cls).bind(**kwargs)
    except TypeError as error:
        raise UserError(f"{cls.__qualname__} cannot be made with workflow_kwargs={dict(kwargs)}: {error}") from None
    except ValueError:  # built in C, no signature to check against
        pass
    return cls(**kwargs)


def _from_instance(instance: object, name: str) -> AgentRun:
    run = getattr(instance, "run", None)
    if not callable(run):
        raise UserError(f"the workflow {name} has no method `run`; pass {_FORMS}")
    _check_async(run, f"{name}.run")
    return AgentRun(name=name, function=run, accepted=_accepted(run))


def _from_function(function: Any, kwargs: Mapping[str, Any]) -> AgentRun:
    if not callable(function):
        raise UserError(f"the workflow is {function!r:.200} of type {type(function).__name__}; pass {_FORMS}")
    name = getattr(function, "__qualname__", type(function).__qualname__)
    _check_async(function, name)
    accepted = _accepted(function)
    unknown = sorted(set(kwargs) - accepted) if accepted is not None else []
    if unknown:
        known = ", ".join(sorted(accepted or ()))
        raise UserError(f"{name} takes no argument {unknown[0]!r} (from workflow_kwargs); it takes: {known}")
    return AgentRun(name=name, function=function, accepted=accepted, extra_kwargs=kwargs)


def _check_async(function: Any, name: str) -> None:
    call = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
    if not (inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)):
        raise UserError(f"{name} must be async (`async def`); blocking calls inside it are fine")
    parameters = list(inspect.signature(function).parameters.values())
    by_name_alone = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
    if not parameters or parameters[0].kind in by_name_alone:
        raise UserError(f"{name} must take the row as its first argument: `async def run(self, data, **extra_kwargs)`")


def _accepted(function: Callable[..., Any]) -> frozenset[str] | None:
    parameters = list(inspect.signature(function).parameters.values())
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return None
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return frozenset(parameter.name for parameter in parameters[1:] if parameter.kind in by_name)


def _import_module(name: str, reference: str) -> ModuleType:
    _make_importable(Path.cwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(error.name + ".")):
            where = f"(looked from {Path.cwd()})"
            raise UserError(f"cannot import {reference!r}: there is no module {error.name!r} {where}") from None
        raise


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UserError(f"there is no file {str(path)!r} (looked from {Path.cwd()})")
    path = path.resolve()
    _make_importable(path.parent)  # as `python path/to/file.py` would, for the modules beside it
    loaded = sys.modules.get(path.stem)
    if loaded is not None and getattr(loaded, "__file__", None) == str(path):
        return loaded
    name = path.stem if loaded is None and path.stem.isidentifier() else f"ludus_agent_{abs(hash(str(path)))}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None, f"{path} ends in .py"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs: dataclasses and pickle look their module up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _make_importable(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
