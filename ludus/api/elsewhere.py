"""Models that the user names and that are served elsewhere: any endpoint of OpenAI's Chat Completions.

Knows: requests in the chat vocabulary, endpoints.  Knows not: runs, their models, who asks.
Invariants: an answer is recorded as text without tokens, so it can never be trained on; the endpoint's key is in no
record; only models that the user has named are ever called.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ludus.episodes.episode import finish
from ludus.episodes.graph import SessionGraph
from ludus.episodes.outcome import Reported
from ludus.episodes.spec import SessionSpec
from ludus.errors import BackendError, UserError
from ludus.loop.sft import read_conversation
from ludus.rewards.chat.http import HttpChatModel
from ludus.rewards.providers import NO_KEY, Endpoint, find_endpoint, unknown_provider
from ludus.runs.interactions import message_json, tool_json
from ludus.types import UNKNOWN_PROMPT, ChatRequest, Episode, Message, Sampled, Sampling

_OWN = re.compile(r"base|final|step-[0-9]+")
_READ = ("role", "content", "reasoning", "reasoning_content")
"""The fields of a reply that are read, besides its tool calls; endpoints send others too."""


def served_models(
    lines: Sequence[str], *, key_variable: str | None = None, environ: Mapping[str, str] = os.environ
) -> dict[str, Endpoint]:
    """The endpoints of the models, by name.

    lines: each `NAME=ADDRESS`, a model's name at an address; or `provider/model`, of a provider whose key is in the
    environment.  key_variable: the environment variable with the key for addresses. None: they need none.
    Raises UserError for any other line, for a name of the run's own models, and if a key is missing.
    """
    key = NO_KEY if key_variable is None else environ.get(key_variable)
    if not key:
        raise UserError(f"the models served elsewhere need a key, and {key_variable} is not set in the environment")
    found: dict[str, Endpoint] = {}
    for line in lines:
        name, has_address, address = line.partition("=")
        if _OWN.fullmatch(name):
            raise UserError(f"{name!r} is a name of a run's own models; a model served elsewhere needs another")
        if name in found:
            raise UserError(f"two models are called {name!r}; the page could not tell them apart")
        if not has_address:
            endpoint = find_endpoint(name, environ=environ)
            if endpoint is None:
                raise unknown_provider(name)
            found[name] = endpoint
        elif name and re.match(r"https?://\S", address):
            found[name] = Endpoint(address.rstrip("/"), name, key)
        else:
            raise UserError(f"{line!r} names no model: write NAME=ADDRESS, as in qwen3=http://127.0.0.1:8000/v1")
    return found


async def ask_elsewhere(endpoint: Endpoint, request: ChatRequest, spec: SessionSpec) -> Episode:
    """An episode of one turn: the request and the model's answer.

    Raises BackendError if the endpoint does not answer, UserError if its address, its key or the model's name is wrong.
    """
    started_at = time.time()
    model = HttpChatModel(endpoint, parameters=_parameters(request))
    try:
        told = await model.complete([message_json(message) for message in request.messages])
    finally:
        await model.aclose()
    graph = SessionGraph(spec.id or "")
    graph.add_turn(
        turn_id=f"elsewhere-{secrets.token_hex(12)}",
        prompt_ids=UNKNOWN_PROMPT,
        prefix=None,
        follows=None,
        fork=None,
        messages=request.messages,
        reply=_reply(told.message, endpoint),
        sampled=Sampled((), (), (), "length" if told.is_cut else "stop"),
        sampling=request.sampling,
        agent=request.agent,
        tools=request.tools,
        started_at=started_at,
        finished_at=time.time(),
    )
    return finish(spec, graph.snapshot(), Reported("ok"), started_at=started_at)


def _parameters(request: ChatRequest) -> dict[str, Any]:
    """The request's parameters besides model and messages; only those that every endpoint of the protocol accepts."""
    sampling, default = request.sampling, Sampling()
    names = ("top_p", "presence_penalty", "frequency_penalty")
    changed = {name: value for name in names if (value := getattr(sampling, name)) != getattr(default, name)}
    optional = {
        "max_tokens": sampling.max_new_tokens,
        "stop": list(sampling.stop) or None,
        "tools": [tool_json(tool) for tool in request.tools] or None,
    }
    known = {name: value for name, value in optional.items() if value is not None}
    return {"temperature": sampling.temperature, **changed, **known}


def _reply(message: Mapping[str, Any], endpoint: Endpoint) -> Message:
    calls = message.get("tool_calls") or ()
    words = {name: message[name] for name in _READ if message.get(name) is not None}
    reply = {"role": "assistant", **words, **({"tool_calls": list(calls)} if calls else {})}
    try:
        return read_conversation({"messages": [{"role": "user", "content": ""}, reply]}, at="the answer").messages[-1]
    except UserError as error:
        said = f"{endpoint.model!r} at {endpoint.base_url} answered with a message that cannot be read: {error}"
        raise BackendError(said) from error
