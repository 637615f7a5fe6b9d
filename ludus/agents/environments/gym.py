"""Environments in Gymnasium's style, played in text: a model reads observations and writes actions.

Knows: `reset` and `step` of Gymnasium and its older relatives, action spaces.  Knows not: agents, tokens.
Invariant: every episode has its own environment; text that is not an action gives the model an error and changes
nothing.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ludus.agents.environments.base import EnvironmentService
from ludus.errors import UserError
from ludus.import_strings import import_object

_NUMBER = re.compile(r"-?\d+")


class GymEnvironment(EnvironmentService):
    """Plays an environment that is named by its Gymnasium id or an import string, or made by a function.

    Blocking ones run on a thread. The row's `seed` and the row itself, as `options`, reach `reset`.
    """

    def __init__(
        self,
        env: str | Callable[..., Any],
        kwargs: Mapping[str, Any] | None = None,
        read_action: Callable[[str], Any] | None = None,
        show: Callable[[Any], str] | None = None,
    ) -> None:
        """kwargs: arguments for making each environment.
        read_action: (text): the action in a model's text; raises ValueError if there is none. None: for a discrete
        space the last number in the text, for a space of several numbers a JSON list, otherwise the text itself.
        show: (observation): its text. None: strings unchanged, everything else as JSON.
        """
        self._make = _maker(env, dict(kwargs or {}))
        self._read_action = read_action
        self._show = show or _as_text
        self._env: Any = None
        """None: this instance only makes others, by `for_episode`."""
        self._row: Mapping[str, Any] = {}

    def __repr__(self) -> str:
        return f"GymEnvironment({self._make!r})"

    def for_episode(self, row: Mapping[str, Any]) -> GymEnvironment:
        played = GymEnvironment(self._make, None, self._read_action, self._show)
        played._row = row
        return played

    async def reset(self, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        """The first observation as text. seed, options: None: from the row."""
        if self._env is None:
            self._env = await asyncio.to_thread(self._make)
        seed = self._row.get("seed") if seed is None else seed
        asked = {"seed": seed, "options": dict(self._row) if options is None else options}
        parameters = inspect.signature(self._env.reset).parameters
        if not any(item.kind is inspect.Parameter.VAR_KEYWORD for item in parameters.values()):
            asked = {name: value for name, value in asked.items() if name in parameters}
        returned = await _call(self._env.reset, **asked)
        observation, info = returned if isinstance(returned, tuple) else (returned, {})
        return self._show(observation), dict(info)

    async def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """The next observation as text, its reward, whether it has ended or was cut short, information."""
        if self._env is None:
            raise UserError("an environment is reset before its first step: await env.reset()")
        try:
            acted = (self._read_action or self._default_action)(action)
        except ValueError as error:
            return str(error), 0.0, False, False, {"invalid_action": True}
        returned = await _call(self._env.step, acted)
        if len(returned) == 4:  # before Gymnasium there was one word for both ways to end
            observation, reward, done, info = returned
            is_cut = bool(info.get("TimeLimit.truncated", False))
            return self._show(observation), float(reward), bool(done) and not is_cut, is_cut, dict(info)
        observation, reward, terminated, truncated, info = returned
        return self._show(observation), float(reward), bool(terminated), bool(truncated), dict(info)

    async def close(self) -> None:
        env, self._env = self._env, None
        if callable(getattr(env, "close", None)):
            await _call(env.close)

    def _default_action(self, text: str) -> Any:
        space = getattr(self._env, "action_space", None)
        if space is None or type(space).__name__ == "Text":
            return text
        if getattr(space, "n", None) is None:
            return _from_json(text, space)
        first = int(getattr(space, "start", 0))
        numbers = [int(number) for number in _NUMBER.findall(text)]
        if not numbers or not first <= numbers[-1] < first + int(space.n):
            raise ValueError(
                f"That is no action. Write one number from {first} to {first + int(space.n) - 1}, and nothing else."
            )
        return numbers[-1]


def _maker(env: str | Callable[..., Any], kwargs: dict[str, Any]) -> Callable[[], Any]:
    if isinstance(env, str) and (":" not in env or env.startswith("gymnasium:")):
        name = env.removeprefix("gymnasium:")
        try:
            gymnasium = importlib.import_module("gymnasium")
        except ModuleNotFoundError:
            raise UserError(f"{env!r} is an id of Gymnasium: pip install 'ludus[environments]'") from None
        return partial(gymnasium.make, name, **kwargs)
    made = import_object(env) if isinstance(env, str) else env
    if not callable(made):
        raise UserError(f"env is {env!r:.100}; pass an id of Gymnasium, 'pkg.mod:Class', or what makes an environment")
    return partial(made, **kwargs)


def _from_json(text: str, space: Any) -> Any:
    """An action for a space of several numbers, read as JSON. Raises ValueError if the text is not one."""
    try:
        value = json.loads(text[text.index("[") : text.rindex("]") + 1])
    except (ValueError, RecursionError):
        raise ValueError(f"That is no action. Write it as JSON, a list of numbers of {space}.") from None
    if isinstance(value, list) and getattr(space, "dtype", None) is not None:
        value = importlib.import_module("numpy").asarray(value, dtype=space.dtype)
    if callable(getattr(space, "contains", None)) and not space.contains(value):
        raise ValueError(f"That is no action. Write it as JSON, a list of numbers of {space}.")
    return value


async def _call(method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if inspect.iscoroutinefunction(method):
        return await method(*args, **kwargs)
    return await asyncio.to_thread(method, *args, **kwargs)


def _as_text(observation: Any) -> str:
    if observation is None or isinstance(observation, str):
        return observation or ""
    return json.dumps(observation, default=_plain, ensure_ascii=False)


def _plain(value: Any) -> Any:
    """Arrays and their numbers as lists and numbers."""
    return value.tolist() if callable(getattr(value, "tolist", None)) else str(value)
