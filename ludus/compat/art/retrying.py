"""A decorator that retries failed calls of sync or async functions, with growing delays."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar, cast

import tenacity

from ludus.errors import UserError

logger = logging.getLogger(__name__)
FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
OnRetry = Callable[[Exception, int], None]
"""Called with the error and the number, from 1, of the failed attempt."""


def retry(
    max_attempts: int = 3,
    delay: float = 0.25,
    backoff_factor: float = 2.0,
    exceptions: tuple[type[Exception], ...] = (Exception,),
    on_retry: OnRetry | None = None,
) -> Callable[[FunctionT], FunctionT]:
    """A decorator that makes up to `max_attempts` attempts, with a pause of `delay` seconds after the first failure and
    `backoff_factor` times the last pause after each further one. Only `exceptions` are retried, never a cancellation;
    the last exception is raised."""
    if max_attempts < 1 or delay < 0:
        raise UserError(f"max_attempts={max_attempts} must be at least 1, and delay={delay} at least 0")

    def report(state: Any) -> None:
        error, attempt = state.outcome.exception(), state.attempt_number
        logger.info("retry.waiting attempt=%d pause_s=%.3g error=%r", attempt, state.upcoming_sleep, error)
        if on_retry is not None:
            on_retry(error, attempt)

    tried = tenacity.retry(
        stop=tenacity.stop_after_attempt(max_attempts),
        wait=tenacity.wait_exponential(multiplier=delay, exp_base=backoff_factor),
        retry=tenacity.retry_if_exception_type(exceptions),
        before_sleep=report,
        reraise=True,
    )
    return cast(Callable[[FunctionT], FunctionT], tried)
