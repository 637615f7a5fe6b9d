"""Models that take part in an episode and are never trained: simulated users, opponents, judges.

Knows: which model is asked, the episode's record.  Knows not: the model under training, tokens, credit.
Invariant: each answer of such a model is a span of kind `actor` in the episode, with its request. It is not a turn, so
it is never trained on, and none of its tokens are in the ledger.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ludus.agents.http_clients import SharedClients
from ludus.agents.settings import ActorSettings
from ludus.errors import UserError
from ludus.rewards.chat.base import Json
from ludus.rewards.chat.http import HttpChatModel
from ludus.rewards.providers import Endpoint, find_endpoint, unknown_provider
from ludus.runs.spans import span

KIND = "actor"


@dataclass(frozen=True, slots=True)
class ActorReply:
    """An actor's answer."""

    message: Json
    """The message in the form of Chat Completions; it may call tools."""
    is_cut: bool
    """Whether it was cut off at a limit of length."""
    num_prompt_tokens: int
    num_completion_tokens: int

    @property
    def text(self) -> str:
        """The answer's text; '' if it only calls tools."""
        return self.message.get("content") or ""


@dataclass(frozen=True, slots=True)
class Actor:
    """One actor in one episode. It may be asked many times at once, on the agents' event loop."""

    name: str
    settings: ActorSettings
    endpoint: Endpoint
    clients: SharedClients

    async def ask(self, messages: Sequence[Json], **fields: Any) -> ActorReply:
        """The actor's answer to a whole conversation, which is recorded.

        fields: further fields of Chat Completions, such as `tools` or `temperature`; they override the settings.
        Raises BackendError if there is no answer, UserError if the address, the key or the model is wrong.
        """
        parameters = {**self.settings.parameters, **fields}
        asked = {"model": self.endpoint.model, "messages": list(messages), **parameters}
        with span(KIND, self.name, inputs=asked) as kept:
            model = HttpChatModel(
                self.endpoint,
                parameters=parameters,
                timeout_s=self.settings.timeout_s,
                num_retries=self.settings.num_retries,
                client=await self.clients.httpx_client(),
            )
            told = await model.complete(messages)
            usage = told.usage
            kept.outputs = told.message
            kept.metrics = {"prompt_tokens": usage.num_prompt_tokens, "completion_tokens": usage.num_completion_tokens}
            if usage.cost_usd is not None:
                kept.metrics["cost_usd"] = usage.cost_usd
            return ActorReply(told.message, told.is_cut, usage.num_prompt_tokens, usage.num_completion_tokens)


def find_actor(
    name: str,
    actors: Mapping[str, ActorSettings],
    clients: SharedClients,
    *,
    environ: Mapping[str, str] = os.environ,
) -> Actor:
    """The actor `name`. Raises UserError if there is none, or if its key or address is missing."""
    settings = actors.get(name)
    if settings is None:
        known = f"there are {', '.join(sorted(actors))}" if actors else "there are none"
        raise UserError(f"no actor is called {name!r}; {known}. Name one below rollout.actors")
    return Actor(name, settings, _endpoint(name, settings, environ), clients)


def check_actors(actors: Mapping[str, ActorSettings], environ: Mapping[str, str] = os.environ) -> None:
    """Raises UserError if an actor's key or address is missing."""
    for name, settings in actors.items():
        _endpoint(name, settings, environ)


def _endpoint(name: str, settings: ActorSettings, environ: Mapping[str, str]) -> Endpoint:
    variable = settings.api_key_env
    key = None if variable is None else environ.get(variable)
    if variable is not None and not key:
        raise UserError(
            f"the actor {name!r} needs the key that rollout.actors.{name}.api_key_env names, and {variable} is not set"
        )
    found = find_endpoint(settings.model, base_url=settings.base_url, api_key=key, environ=environ)
    if found is None:
        raise unknown_provider(settings.model)
    return found
