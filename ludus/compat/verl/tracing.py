"""Spans of a loop's own functions, under the names that verl's loops know.

Knows: functions.  Knows not: where traces go.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pydantic_core

from ludus.compat.members import with_members
from ludus.runs.spans import OpenSpan, span

logger = logging.getLogger(__name__)
FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


@with_members("verl", "utils.rollout_trace.RolloutTraceConfig")
class RolloutTraceConfig:
    """`trackers.to` sets where traces go; what code asks for besides is logged and does nothing."""

    @classmethod
    def init(
        cls,
        project_name: str,
        experiment_name: str,
        backend: str | None,
        token2text: bool = False,
        max_samples_per_step_per_worker: int | None = None,
    ) -> None:
        asked = f"backend={backend!r}, project {project_name!r}, experiment {experiment_name!r}"
        logger.warning("RolloutTraceConfig.init(%s) does nothing: trackers.to of the configuration says it", asked)

    @classmethod
    def reset(cls) -> None:
        """Nothing is kept."""


def rollout_trace_op(func: FunctionT) -> FunctionT:
    """The function, whose calls are spans of the episode that is playing."""
    name = getattr(func, "__qualname__", type(func).__qualname__)
    names = tuple(inspect.signature(func).parameters)

    @contextmanager
    def traced(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[OpenSpan]:
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        shown = {key: _shown(value) for key, value in given.items() if key not in ("self", "cls")}
        with span("op", name, inputs=shown) as record:
            yield record
            record.outputs = _shown(record.outputs)

    @functools.wraps(func)
    async def awaited(*args: Any, **kwargs: Any) -> Any:
        with traced(args, kwargs) as record:
            returned = record.outputs = await func(*args, **kwargs)
        return returned

    @functools.wraps(func)
    def at_once(*args: Any, **kwargs: Any) -> Any:
        with traced(args, kwargs) as record:
            returned = record.outputs = func(*args, **kwargs)
        return returned

    return awaited if inspect.iscoroutinefunction(func) else at_once  # type: ignore[return-value]  # the same


def _shown(value: Any) -> Any:
    """The value as JSON can hold it, now: a trajectory goes on changing what it was given."""
    try:
        return pydantic_core.to_jsonable_python(value, serialize_unknown=True, inf_nan_mode="constants")
    except ValueError:  # it holds itself
        return f"{value!r:.1000}"


@contextmanager
def rollout_trace_attr(
    sample_index: Any = None,
    step: Any = None,
    rollout_n: Any = None,
    name: str = "rollout_trace",
    validate: bool = False,
    trace: bool = True,
    **attributes: Any,
) -> Iterator[None]:
    """The block as a span with these attributes; with `trace=False` it is none. Step, sample and group are known of
    every episode without it."""
    if not trace:
        yield
        return
    given = {"sample_index": sample_index, "step": step, "rollout_n": rollout_n, "validate": validate or None}
    shown = {key: value for key, value in {**given, **attributes}.items() if value is not None}
    with span("op", name, inputs={"name": name, **shown}):
        yield
