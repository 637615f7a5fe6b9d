"""Which arguments a function accepts, and whether it is async.

Knows: signatures.  Knows not: what calls.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def is_async(function: Any) -> bool:
    """Whether it is an async function, or an object whose `__call__` is one."""
    call = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def accepted(function: Callable[..., Any], skip: int = 0) -> frozenset[str] | None:
    """The parameter names that it accepts, without the first `skip` parameters. None: any name."""
    parameters = list(inspect.signature(function).parameters.values())
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return None
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return frozenset(parameter.name for parameter in parameters[skip:] if parameter.kind in by_name)
