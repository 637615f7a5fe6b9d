"""Makes a chat model from a model's name and the caller's parameters.

Knows: the arguments that users of LiteLLM pass.  Knows not: what is asked.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ludus.errors import UserError
from ludus.rewards.chat.base import ChatModel
from ludus.rewards.chat.http import TIMEOUT_S, HttpChatModel, Price
from ludus.rewards.chat.litellm import LitellmChatModel, has_litellm
from ludus.rewards.providers import find_endpoint, unknown_provider


def resolve_chat_model(
    model: str,
    parameters: Mapping[str, Any] | None = None,
    *,
    price: Price | None = None,
) -> ChatModel:
    """The chat model `model`, such as `openai/o3`.

    parameters: `api_base` (or `base_url`), `api_key`, `timeout`, `num_retries` (or `max_retries`); everything else
    becomes a field of each request, such as `temperature`. None: no parameters.
    Raises UserError for an unknown provider, or if a key is missing.
    """
    rest = dict(parameters or {})
    base_url, api_key = _one_of(rest, "api_base", "base_url"), rest.pop("api_key", None)
    timeout_s, num_retries = rest.pop("timeout", None), _one_of(rest, "num_retries", "max_retries")
    endpoint = find_endpoint(model, base_url=base_url, api_key=api_key, environ=os.environ)
    if endpoint is None:
        if not has_litellm():
            raise unknown_provider(model)
        return LitellmChatModel(model, parameters=parameters)
    return HttpChatModel(
        endpoint,
        parameters=rest,
        timeout_s=TIMEOUT_S if timeout_s is None else float(timeout_s),
        num_retries=4 if num_retries is None else int(num_retries),
        price=price,
    )


def _one_of(parameters: dict[str, Any], first: str, second: str) -> Any:
    if first in parameters and second in parameters:
        raise UserError(f"{first} and {second} say the same thing twice; give one of them")
    return parameters.pop(first, parameters.pop(second, None))
