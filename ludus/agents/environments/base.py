"""Environments: `reset` gives an observation, `step` five values, as in Gymnasium, but asynchronous.

Knows: spans.  Knows not: agents, tokens.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from ludus.runs.spans import span


def _traced(name: str, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """The method, each call of which is a span of the episode that makes it."""

    @functools.wraps(method)
    async def traced(self: Any, *args: Any, **kwargs: Any) -> Any:
        with span("tool", name, inputs=args[0] if args else kwargs or None) as seen:
            seen.outputs = await method(self, *args, **kwargs)
            return seen.outputs

    return traced


class EnvironmentService:
    """Base of environments. One instance serves all episodes unless `for_episode` makes one for each."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in ("reset", "step"):
            if name in vars(cls):
                setattr(cls, name, _traced(f"{cls.__qualname__}.{name}", vars(cls)[name]))

    def for_episode(self, row: Mapping[str, Any]) -> EnvironmentService:
        """The environment of an episode that plays `row`: this one, unless a subclass keeps the state of an episode."""
        return self

    async def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """The first observation, and information about it."""
        raise NotImplementedError(f"{type(self).__qualname__} must define `async def reset`")

    async def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Observation, reward, whether it has ended, whether it was cut short, information."""
        raise NotImplementedError(f"{type(self).__qualname__} must define `async def step`")

    async def close(self) -> None:
        """Nothing is asked any more. Called for what `for_episode` made, and once for the environment of the run."""
