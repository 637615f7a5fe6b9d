"""Resolves names such as `openai/o3` to an address, a key and the model's name at that address.

Knows: providers, their addresses, and the environment variables of their keys.  Knows not: HTTP.
Invariant: a key is sent only to the provider that its variable belongs to, or to the address that the caller gives.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from ludus.errors import UserError
from ludus.settings import did_you_mean


@dataclass(frozen=True, slots=True)
class Provider:
    """A provider of models in OpenAI's protocol."""

    base_url: str | None
    """None: users run their own server, and give its address."""
    key_variable: str | None
    """Environment variable with the key. None: no key is needed."""


PROVIDERS: Mapping[str, Provider] = {
    "openai": Provider("https://api.openai.com/v1", "OPENAI_API_KEY"),
    "anthropic": Provider("https://api.anthropic.com/v1", "ANTHROPIC_API_KEY"),
    "gemini": Provider("https://generativelanguage.googleapis.com/v1beta/openai", "GEMINI_API_KEY"),
    "openrouter": Provider("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
    "deepseek": Provider("https://api.deepseek.com/v1", "DEEPSEEK_API_KEY"),
    "mistral": Provider("https://api.mistral.ai/v1", "MISTRAL_API_KEY"),
    "groq": Provider("https://api.groq.com/openai/v1", "GROQ_API_KEY"),
    "xai": Provider("https://api.x.ai/v1", "XAI_API_KEY"),
    "together_ai": Provider("https://api.together.xyz/v1", "TOGETHERAI_API_KEY"),
    "fireworks_ai": Provider("https://api.fireworks.ai/inference/v1", "FIREWORKS_AI_API_KEY"),
    "ollama": Provider("http://127.0.0.1:11434/v1", None),
    "lm_studio": Provider("http://127.0.0.1:1234/v1", None),
    "hosted_vllm": Provider(None, None),
}
NO_KEY = "none"
"""Sent if no key is needed: some servers require the header, with any value."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of a chat model."""

    base_url: str
    model: str
    """The model's name there."""
    api_key: str = field(repr=False)


def find_endpoint(
    name: str, *, base_url: str | None = None, api_key: str | None = None, environ: Mapping[str, str] = os.environ
) -> Endpoint | None:
    """The endpoint of `name`, such as `openai/o3`. None: the name's first part is not in `PROVIDERS`.

    base_url: instead of the provider's; the name may then be the model's own, without a provider.  api_key: instead of
    the one in the environment.
    Raises UserError if a key is missing, or the address for a provider whose servers users run themselves.
    """
    first, slash, rest = name.partition("/")
    provider = PROVIDERS.get(first) if slash else None
    if base_url is not None:
        # A key of the environment is meant for its provider's own address, and goes nowhere else.
        return Endpoint(base_url.rstrip("/"), rest if provider is not None else name, api_key or NO_KEY)
    if provider is None:
        return None
    if not rest:
        raise UserError(f"the model {name!r} names a provider and no model; say which, as in 'openai/o3'")
    if provider.base_url is None:
        raise UserError(f"the model {name!r} is one that you serve yourself; say where, with base_url=...")
    key = api_key or (NO_KEY if provider.key_variable is None else environ.get(provider.key_variable))
    if not key:
        raise UserError(
            f"the model {name!r} needs a key: set {provider.key_variable} in the environment, or api_key=..."
        )
    return Endpoint(provider.base_url, rest, key)


def unknown_provider(name: str) -> UserError:
    """The error for a name that `find_endpoint` does not know."""
    first, slash, _ = name.partition("/")
    hint = did_you_mean(first, PROVIDERS) if slash else "."
    said = (
        f"the provider {first!r} of the model {name!r} is unknown" if slash else f"the model {name!r} names no provider"
    )
    return UserError(
        f"{said}{hint} Write 'provider/model', with one of {', '.join(PROVIDERS)}; or give the base_url of any "
        "endpoint that speaks OpenAI's protocol; or install litellm, which knows others: pip install litellm"
    )
