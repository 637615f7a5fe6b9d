"""Chat models of providers that only LiteLLM supports, if it is installed.

Knows: LiteLLM's one function.  Knows not: judges.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from typing import Any

from ludus.errors import BackendError, UserError
from ludus.rewards.chat.base import WRONG_SETTINGS, ChatAnswer, Json, Usage


def has_litellm() -> bool:
    return importlib.util.find_spec("litellm") is not None


class LitellmChatModel:
    """One model, by LiteLLM's name."""

    def __init__(self, model: str, *, parameters: Json | None = None) -> None:
        """parameters: further arguments of `litellm.acompletion`. None: none."""
        self._module: Any = importlib.import_module("litellm")
        self._model = model
        self._parameters = dict(parameters or {})

    def __repr__(self) -> str:
        return f"LitellmChatModel({self._model!r})"

    @property
    def identity(self) -> Json:
        known = {name: value for name, value in self._parameters.items() if name != "api_key"}
        return {"litellm": self._model, "parameters": known}

    async def ask(self, messages: Sequence[Json], *, name: str, schema: Json) -> ChatAnswer:
        form = {"type": "json_schema", "json_schema": {"name": name, "strict": True, "schema": dict(schema)}}
        arguments = {"response_format": form, "num_retries": 4, **self._parameters}
        try:
            response = await self._module.acompletion(model=self._model, messages=list(messages), **arguments)
        except Exception as error:  # LiteLLM raises errors of every provider's SDK; this is the boundary to it
            is_users = getattr(error, "status_code", None) in WRONG_SETTINGS
            kind = UserError if is_users else BackendError
            raise kind(f"{self!r}: {type(error).__name__}: {error}") from error
        choice, usage = response.choices[0], response.usage
        cost = (response._hidden_params or {}).get("response_cost")
        return ChatAnswer(
            choice.message.content or "",
            Usage(1, 0, usage.prompt_tokens, usage.completion_tokens, None if cost is None else float(cost)),
            choice.finish_reason == "length",
        )

    async def aclose(self) -> None:
        return None
