"""The tools of one trajectory: called with the arguments that the model wrote, and closed once at the end.

Knows: instances of tools, arguments as JSON, lengths of answers.  Knows not: where tools come from, messages.
Invariants: any fault of a tool or of the model becomes the text of a result, never an error; `create`, `calc_reward`
and `release` of a tool run once in a trajectory that calls it, `calc_reward` only if that ended without an error.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

from ludus.agents.tools.answer import ToolError, ToolLimits, ToolResult, shorten
from ludus.agents.tools.deadline import DeadlineError
from ludus.agents.tools.instance import ToolInstance
from ludus.errors import UserError
from ludus.runs.metrics import merge_means
from ludus.runs.spans import span
from ludus.settings import did_you_mean
from ludus.text.tokenizer import Tokenizer
from ludus.types import ToolCall, ToolSpec

logger = logging.getLogger(__name__)

UNDECODED = "Failed to decode tool call"
"""Text for log, trace and model if a tool call cannot be parsed."""

Warn = Callable[[str, BaseException], None]
"""(name of the tool, error): logs that the tool raised."""


def undecoded(raw: str, turn_id: str | None) -> ToolResult:
    """The result for text that began as a tool call and could not be parsed."""
    error = f"{UNDECODED}: {raw:.200}"
    text = f"Error: {error}\nWrite the call again, in the form that the tools ask for."
    with span("tool", "undecoded", inputs=raw) as record:
        record.outputs, record.error, record.turn_id = text, error, turn_id
    return ToolResult(text, error=error)


def too_many(name: str, arguments: object, most: int) -> ToolResult:
    """The result for a call beyond the limit of calls in one answer."""
    error = f"of one answer {most} call{'s are' if most > 1 else ' is'} run, and this is one more; call again"
    with span("tool", name, inputs=arguments) as record:
        record.outputs = record.error = error
    return ToolResult(f"Error: {error}", error=error)


@dataclass(frozen=True, slots=True)
class _EndedCall:
    name: str
    """Name of the tool."""
    result: ToolResult
    wait_s: float = 0.0
    """How long it waited for a free slot."""
    time_s: float = 0.0


class EpisodeTools:
    """The tools of one trajectory. Use as an async context manager, on the event loop where the tool set was set up."""

    def __init__(
        self,
        instances: Mapping[str, ToolInstance],
        *,
        limits: ToolLimits,
        tokenizer: Tokenizer | None,
        agent_data: Any,
        warn: Warn,
    ) -> None:
        self.rewards: Mapping[str, float] = {}
        """By tool the number that `calc_reward` returned, once closed; only for tools that were used and gave one."""
        self._instances = instances
        self._limits = limits
        self._tokenizer = tokenizer
        self._agent_data = agent_data
        self._warn = warn
        self._calls: list[_EndedCall] = []
        """Calls in the order in which they ended."""
        self._is_open = False

    def __repr__(self) -> str:
        return f"EpisodeTools({', '.join(self._instances)}; open={self._is_open}, calls={len(self._calls)})"

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The tools, in the form of a request."""
        return tuple(instance.entry.spec for instance in self._instances.values())

    @property
    def call_rewards(self) -> tuple[float, ...]:
        """The rewards of those calls that gave one, in the order in which the calls ended."""
        return tuple(call.result.reward for call in self._calls if call.result.reward is not None)

    @property
    def metrics(self) -> dict[str, float]:
        """The number of calls and errors, seconds in tools, seconds spent waiting for slots, and the mean of each
        metric that tools gave."""
        given = (
            {
                f"tools/{call.name}/{key}": float(value)
                for key, value in call.result.metrics.items()
                if isinstance(value, Real)
            }
            for call in self._calls
        )
        return {
            "tools/num_calls": float(len(self._calls)),
            "tools/num_errors": float(sum(call.result.error is not None for call in self._calls)),
            "tools/time_s": math.fsum(call.time_s for call in self._calls),
            "tools/wait_s": math.fsum(call.wait_s for call in self._calls),
            **merge_means(given),
        }

    async def __aenter__(self) -> EpisodeTools:
        self._is_open = True
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Release all tools. Raises UserError afterwards if a tool's `calc_reward` failed."""
        self._is_open = False
        used = {name: instance for name, instance in self._instances.items() if instance.is_used}
        try:
            if kind is None:
                rewards = {name: await self._reward(name, instance) for name, instance in used.items()}
                self.rewards = {name: reward for name, reward in rewards.items() if reward is not None}
        finally:
            for name, instance in used.items():
                await self._release(name, instance)

    async def call(self, call: ToolCall, *, turn_id: str | None = None) -> ToolResult:
        """The tool's result. turn_id: the calling turn, for the trace. None: unknown.

        Raises nothing except on cancellation, and UserError outside of `async with`.
        """
        if not self._is_open:
            raise UserError(f"the tool {call.name!r} was called outside of its toolbox's `async with`")
        asked = begun = time.perf_counter()
        with span("tool", call.name, inputs=call.arguments) as record:

            def begin() -> None:
                nonlocal begun
                begun, record.started_at = time.perf_counter(), time.time()

            result = await self._answer(call, begin)
            record.outputs, record.error, record.turn_id = result.text, result.error, turn_id
        name = call.name if call.name in self._instances else "unknown"
        self._calls.append(_EndedCall(name, result, begun - asked, time.perf_counter() - begun))
        return result

    def undecoded(self, raw: str, *, turn_id: str | None = None) -> ToolResult:
        """The result for text that began as a tool call and could not be parsed."""
        result = undecoded(raw, turn_id)
        self._calls.append(_EndedCall("undecoded", result))
        return result

    async def _answer(self, call: ToolCall, on_begin: Callable[[], None]) -> ToolResult:
        try:
            instance = self._instances.get(call.name)
            if instance is None:
                hint = did_you_mean(call.name, self._instances)
                known = ", ".join(self._instances) or "none"
                raise ToolError(f"Unknown function {call.name!r}{hint} Available tools: {known}")
            answer = await instance.execute(_arguments(call, instance.entry.spec), self._agent_data, on_begin)
        except ToolError as error:
            return self._failed(str(error))
        except DeadlineError:
            timeout_s = self._instances[call.name].entry.timeout_s
            return self._failed(f"the tool {call.name!r} did not answer within {timeout_s} s")
        except Exception as error:  # whatever a user's tool raises is for the model to read
            self._warn(call.name, error)
            return self._failed(f"the tool {call.name!r} failed: {type(error).__name__}: {error}")
        return replace(answer, text=shorten(answer.text, self._limits, self._tokenizer))

    def _failed(self, error: str) -> ToolResult:
        return ToolResult(shorten(f"Error: {error}", self._limits, self._tokenizer), error=error)

    async def _reward(self, name: str, instance: ToolInstance) -> float | None:
        try:
            return await instance.calc_reward()
        except DeadlineError:
            raise UserError(f"calc_reward of the tool {name!r} took longer than {instance.entry.timeout_s} s") from None
        except Exception as error:
            raise UserError(f"calc_reward of the tool {name!r} failed: {type(error).__name__}: {error}") from error

    async def _release(self, name: str, instance: ToolInstance) -> None:
        try:
            await instance.release()
        except DeadlineError:
            logger.warning("release of the tool %r took longer than %s s", name, instance.entry.timeout_s)
        except Exception as error:  # the trajectory is over, and what it earned is known
            self._warn(name, error)


def _arguments(call: ToolCall, spec: ToolSpec) -> dict[str, Any]:
    """The call's arguments. Raises ToolError if they are not a JSON object, or if one is missing or unknown."""
    try:
        arguments = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError) as error:
        logger.warning("%s %s: %.200s", UNDECODED, call.name, call.arguments)
        raise ToolError(f"{UNDECODED}: Invalid JSON in the arguments of {call.name!r}: {error}") from None
    if not isinstance(arguments, dict):
        raise ToolError(f"the arguments of {call.name!r} must be a JSON object, got {call.arguments:.200}")
    properties = spec.parameters.get("properties") or {}
    missing = [name for name in spec.parameters.get("required") or () if name not in arguments]
    unknown = [name for name in arguments if name not in properties]
    if missing:
        raise ToolError(
            f"the tool {call.name!r} needs the argument {missing[0]!r}; got: {', '.join(arguments) or 'none'}"
        )
    if unknown and spec.parameters.get("additionalProperties") is False:
        known = ", ".join(properties) or "none"
        raise ToolError(f"the tool {call.name!r} takes no argument {unknown[0]!r}; it takes: {known}")
    return arguments
