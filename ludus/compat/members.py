"""Arguments and members of the originals that have no effect here: accepted with one log message, or refused.

Knows: signatures, and the sections of members in `names.toml`.  Knows not: what any function does.
Invariant: no argument of an original function, and no member of an original class, is treated as unknown.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypeVar, cast

from ludus.compat.names import NotNeeded, Reasons, Table, page
from ludus.errors import ConfigError

logger = logging.getLogger(__name__)

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
ClassT = TypeVar("ClassT", bound=type)


def takes(family: str, path: str) -> Callable[[FunctionT], FunctionT]:
    """A decorator for the function that stands for `path` of the original.

    An ignored argument is logged with the reason the first time it is given a value other than its default.
    For a refused argument, the function raises ConfigError.
    """

    def decorate(function: FunctionT) -> FunctionT:
        signature, told = inspect.signature(function), Told(family, path)

        def look(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
            told.look(_said(signature, args, kwargs))

        if inspect.iscoroutinefunction(function):

            @wraps(function)
            async def looked_at_async(*args: Any, **kwargs: Any) -> Any:
                look(args, kwargs)
                return await function(*args, **kwargs)

            return cast(FunctionT, looked_at_async)

        @wraps(function)
        def looked_at(*args: Any, **kwargs: Any) -> Any:
            look(args, kwargs)
            return function(*args, **kwargs)

        return cast(FunctionT, looked_at)

    return decorate


class Told:
    """Keeps track of which arguments of one function were already logged."""

    def __init__(self, family: str, path: str) -> None:
        table = Table.of(family)
        self._family, self._path = family, path
        self.ignored, self.refused = (
            _arguments(reasons, path) for reasons in (table.unneeded_members, table.refused_members)
        )
        self._named: set[str] = set()

    def look(self, given: Mapping[str, Any]) -> None:
        """given: arguments with values other than their defaults. Raises ConfigError that names all refused ones."""
        refused = [f"{name}={given[name]!r:.60}: {why}" for name, why in self.refused.items() if name in given]
        if refused:
            raise ConfigError(
                f"{self._family}.{self._path} does not take {'; '.join(refused)}. All that is: {page(self._family)}"
            )
        if fresh := [name for name in self.ignored if name in given and name not in self._named]:
            self._named.update(fresh)
            said = "; ".join(f"{name} ({self.ignored[name]})" for name in fresh)
            logger.warning("%s.%s ignores %s", self._family, self._path, said)


def with_members(family: str, path: str) -> Callable[[ClassT], ClassT]:
    """A decorator for the class that stands for `path`: its constructor `takes` its arguments; its other members do
    nothing and log that, or raise an error with the reason."""

    def decorate(cls: ClassT) -> ClassT:
        table = Table.of(family)
        if _arguments({**table.unneeded_members, **table.refused_members}, path) and "__init__" in vars(cls):
            cls.__init__ = takes(family, path)(cls.__init__)  # type: ignore[misc]  # of this class, and no other
        for name, why in _members(table.unneeded_members, path).items():
            setattr(cls, name, NotNeeded(f"{family}.{path}.{name}", why))
        for name, why in _members(table.refused_members, path).items():
            setattr(cls, name, _Withheld(f"{family}.{path}.{name} is not here: {why}. All that is: {page(family)}"))
        return cls

    return decorate


class _Withheld:
    """An attribute that raises an error with the reason for its absence when it is read; `hasattr` is false."""

    def __init__(self, why: str) -> None:
        self._why = why

    def __get__(self, instance: object, owner: type | None = None) -> _Withheld:
        if instance is None and hasattr(owner, "model_fields"):  # which looks at its class before it asks an object
            return self
        raise AttributeError(self._why)


def _said(signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments that differ from their defaults, by name. For an invalid call, only keyword arguments."""
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError:
        return dict(kwargs)
    said: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        parameter = signature.parameters[name]
        if parameter.kind is parameter.VAR_KEYWORD:
            said |= value
        elif value is not parameter.default:
            said[name] = value
    return said


def _arguments(reasons: Reasons, path: str) -> dict[str, str]:
    """The reasons for arguments of the function, by name."""
    begin = f"{path}:"
    return {name.removeprefix(begin): why for name, why in reasons.items() if name.startswith(begin)}


def _members(reasons: Reasons, path: str) -> dict[str, str]:
    """The reasons for members of the class, by name."""
    parts = ((*name.rpartition("."), why) for name, why in reasons.items() if ":" not in name)
    return {name: why for above, _, name, why in parts if above == path}
