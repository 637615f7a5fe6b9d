"""A decorator that limits the concurrent calls of an asynchronous function."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from ludus.errors import UserError

ArgsT = ParamSpec("ArgsT")
ResultT = TypeVar("ResultT")
_Semaphores = dict[Hashable, asyncio.Semaphore]


def limit_concurrency(
    n: int, derive_key: Callable[..., Hashable] | None = None
) -> Callable[[Callable[ArgsT, Awaitable[ResultT]]], Callable[ArgsT, Awaitable[ResultT]]]:
    """A decorator that lets at most `n` calls run at once, of all calls or of those with the same key.

    derive_key: the key of a call, from its arguments. None: all calls share one.
    """
    if n < 1:
        raise UserError(f"limit_concurrency(n={n}) must let at least one call run")

    def decorate(function: Callable[ArgsT, Awaitable[ResultT]]) -> Callable[ArgsT, Awaitable[ResultT]]:
        # A semaphore is bound to the event loop that first waits for it, and a program may have several loops.
        semaphores: WeakKeyDictionary[asyncio.AbstractEventLoop, _Semaphores] = WeakKeyDictionary()

        @functools.wraps(function)
        async def limited(*args: ArgsT.args, **kwargs: ArgsT.kwargs) -> Any:
            key = None if derive_key is None else derive_key(*args, **kwargs)
            here = semaphores.setdefault(asyncio.get_running_loop(), {})
            async with here.setdefault(key, asyncio.Semaphore(n)):
                return await function(*args, **kwargs)

        return limited

    return decorate
