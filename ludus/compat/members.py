"""Arguments and members of the originals that mean nothing here: taken and named once, or refused by name.

Knows: signatures, and the sections of members in `names.toml`.  Knows not: what any function does.
Invariant: an argument that an original's function takes is never an unknown one, nor is a member of its classes.
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
    """A decorator of the function that stands for `path` of the original.

    An argument that is ignored is named in the log, with the reason, the first time that it says anything.
    The function raises ConfigError for one that is refused, whatever else it raises.
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
    """Which arguments of one function have been named already."""

    def __init__(self, family: str, path: str) -> None:
        table = Table.of(family)
        self._family, self._path = family, path
        self.ignored, self.refused = (
            _arguments(reasons, path) for reasons in (table.unneeded_members, table.refused_members)
        )
        self._named: set[str] = set()

    def look(self, given: Mapping[str, Any]) -> None:
        """given: the arguments that say something. Raises ConfigError, which names all that are refused."""
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
    """A decorator of the class that stands for `path`: its constructor `takes` its arguments, and its other members do
    nothing and say so, or say why they are not there."""

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
    """An attribute whose reading says why it is not there; `hasattr` is false."""

    def __init__(self, why: str) -> None:
        self._why = why

    def __get__(self, instance: object, owner: type | None = None) -> _Withheld:
        if instance is None and hasattr(owner, "model_fields"):  # which looks at its class before it asks an object
            return self
        raise AttributeError(self._why)


def _said(signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments by name that are not as they are by default. Of a call that cannot be, those that have a name."""
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
    """Of the function: by name of the argument."""
    begin = f"{path}:"
    return {name.removeprefix(begin): why for name, why in reasons.items() if name.startswith(begin)}


def _members(reasons: Reasons, path: str) -> dict[str, str]:
    """Of the class: by name of the member."""
    parts = ((*name.rpartition("."), why) for name, why in reasons.items() if ":" not in name)
    return {name: why for above, _, name, why in parts if above == path}
