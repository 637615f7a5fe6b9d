"""Calls that are tried again when they fail, with growing pauses; synchronous and asynchronous functions alike."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from ludus.errors import UserError

logger = logging.getLogger(__name__)
FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
OnRetry = Callable[[Exception, int], None]
"""Told the error and the number of the try that failed; the first is 1."""


@dataclass(frozen=True, slots=True)
class _Plan:
    max_attempts: int
    delay_s: float
    backoff_factor: float
    exceptions: tuple[type[Exception], ...]
    on_retry: OnRetry | None

    def pause_s(self, name: str, error: Exception, attempt: int) -> float:
        """Seconds until the next try. Raises the error if this one was the last."""
        if attempt >= self.max_attempts:
            raise error
        if self.on_retry is not None:
            self.on_retry(error, attempt)
        pause_s = self.delay_s * self.backoff_factor ** (attempt - 1)
        logger.info("retry.waiting function=%s attempt=%d pause_s=%.3g error=%r", name, attempt, pause_s, error)
        return pause_s


def retry(
    max_attempts: int = 3,
    delay: float = 0.25,
    backoff_factor: float = 2.0,
    exceptions: tuple[type[Exception], ...] = (Exception,),
    on_retry: OnRetry | None = None,
) -> Callable[[FunctionT], FunctionT]:
    """A decorator: up to `max_attempts` tries, `delay` seconds after the first failure and `backoff_factor` times as
    many after each further one. Only `exceptions` are tried again; the last one rises. A cancellation is never one."""
    if max_attempts < 1 or delay < 0:
        raise UserError(f"max_attempts={max_attempts} must be at least 1, and delay={delay} at least 0")
    plan = _Plan(max_attempts, delay, backoff_factor, exceptions, on_retry)

    def decorate(function: FunctionT) -> FunctionT:
        name = function.__qualname__

        @functools.wraps(function)
        async def tried_async(*args: Any, **kwargs: Any) -> Any:
            attempt = 1
            while True:
                try:
                    return await function(*args, **kwargs)
                except plan.exceptions as error:
                    await asyncio.sleep(plan.pause_s(name, error, attempt))
                    attempt += 1

        @functools.wraps(function)
        def tried(*args: Any, **kwargs: Any) -> Any:
            attempt = 1
            while True:
                try:
                    return function(*args, **kwargs)
                except plan.exceptions as error:
                    time.sleep(plan.pause_s(name, error, attempt))
                    attempt += 1

        return cast(FunctionT, tried_async if inspect.iscoroutinefunction(function) else tried)

    return decorate
