"""Runs reward functions that compute or block in separate processes, while agents continue.

Knows: worker processes, deadlines.  Knows not: what a reward is for, agents.
Invariant: a call that hangs ends at its deadline, and its process with it; its reward is then the one set beforehand.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import partial
from typing import Any

from ludus.errors import UserError
from ludus.machine import Machine
from ludus.processes.calls import RemoteFunction, WorkerCrashedError, WorkerTimeoutError
from ludus.processes.pool import WorkerPool
from ludus.runs.spans import span

logger = logging.getLogger(__name__)

TIMEOUT_S = 15.0
MAX_RETRIES = 3


class AsyncRewardWrapper:
    """Makes a reward function awaitable: `await wrapper(prompt, completion, …)`. Create it once, in `__init__`.

    Works on any event loop; its processes start when first needed, and end with it, or at `close`.
    """

    def __init__(
        self,
        reward_fn: Callable[..., Any],
        timeout_seconds: float | None = TIMEOUT_S,
        max_workers: int | None = None,
        max_retries: int = MAX_RETRIES,
        *,
        timeout_reward: float | None = 0.0,
    ) -> None:
        """reward_fn: plain or async; its result is returned, and its error raised.

        timeout_seconds: for one call, whose process is then killed. None: no limit.
        max_workers: number of processes. None: half the number of cores, at least one.
        max_retries: how often a call is repeated if its process crashed; a call that was too slow is not repeated.
        timeout_reward: the reward for a call that was too slow. None: WorkerTimeoutError is raised.
        Raises UserError if it is not a function, or cannot be sent to another process.
        """
        if not callable(reward_fn):
            raise UserError(f"reward_fn is {reward_fn!r:.200} of type {type(reward_fn).__name__}; pass a function")
        if max_retries < 0:
            raise UserError(f"max_retries={max_retries} must be 0 or more")
        self.reward_fn = reward_fn
        self.timeout_seconds = timeout_seconds
        self.max_workers = max_workers or max(1, Machine.look(seconds=0).workers // 2)
        self.max_retries = max_retries
        self.timeout_reward = timeout_reward
        self._name = getattr(reward_fn, "__name__", type(reward_fn).__name__)
        self._function = RemoteFunction.of(reward_fn)
        self._pool = WorkerPool(self.max_workers, name=f"reward-{self._name}", env=os.environ)

    def __repr__(self) -> str:
        return f"AsyncRewardWrapper({self._name}, timeout_seconds={self.timeout_seconds}, {self._pool!r})"

    def __reduce__(self) -> tuple[object, ...]:
        """Pickles without the processes: a copy in another process, where an agent is set up, starts its own."""
        make = partial(AsyncRewardWrapper, timeout_reward=self.timeout_reward)
        return make, (self.reward_fn, self.timeout_seconds, self.max_workers, self.max_retries)

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function's result, or `timeout_reward`. Raises what the function raises, and WorkerCrashedError."""
        with span("reward", self._name) as begun:
            begun.outputs = value = await self._value(args, kwargs)
            return value

    async def _value(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for attempt in range(self.max_retries + 1):
            try:
                return await self._pool.call(self._function, args, kwargs, timeout_s=self.timeout_seconds)
            except WorkerTimeoutError:
                if self.timeout_reward is None:
                    raise
                logger.warning(
                    "reward.timeout function=%s timeout_s=%s reward=%s",
                    self._name,
                    self.timeout_seconds,
                    self.timeout_reward,
                )
                return self.timeout_reward
            except WorkerCrashedError as error:
                if attempt == self.max_retries:
                    raise
                logger.warning("reward.crashed function=%s attempt=%d error=%s", self._name, attempt + 1, error)
        raise AssertionError("the last attempt returned or raised")

    def close(self) -> None:
        """End the processes without waiting for running calls."""
        self._pool.close()
