"""Environments: `reset` gives an observation, `step` five values, as in Gymnasium, but asynchronous.

Knows: spans.  Knows not: agents, tokens.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from ludus.runs.spans import span


def _traced(name: str, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """The method, wrapped so that each call is recorded as a span of the calling episode."""

    @functools.wraps(method)
    async def traced(self: Any, *args: Any, **kwargs: Any) -> Any:
        with span("tool", name, inputs=args[0] if args else kwargs or None) as seen:
            seen.outputs = await method(self, *args, **kwargs)
            return seen.outputs

    return traced


class EnvironmentService:
    """Base class of environments. One instance serves all episodes unless `for_episode` makes one for each."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in ("reset", "step"):
            if name in vars(cls):
                setattr(cls, name, _traced(f"{cls.__qualname__}.{name}", vars(cls)[name]))

    def for_episode(self, row: Mapping[str, Any]) -> EnvironmentService:
        """The environment for an episode with this row: `self`, unless a subclass keeps state per episode."""
        return self

    async def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """The first observation, and information about it."""
        raise NotImplementedError(f"{type(self).__qualname__} must define `async def reset`")

    async def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Observation, reward, whether it has ended, whether it was cut short, information."""
        raise NotImplementedError(f"{type(self).__qualname__} must define `async def step`")

    async def close(self) -> None:
        """Called at the end, for each environment made by `for_episode` and once for the run's own."""
