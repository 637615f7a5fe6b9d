"""Models that are served elsewhere, beside a run's own: any endpoint of OpenAI's Chat Completions that its user names.

Knows: requests in the chat vocabulary, endpoints.  Knows not: runs, their models, who asks.
Invariants: what such a model says is recorded as text without tokens, so that nothing here can be trained on as if it
had been sampled; its key is in no record; it is asked by nobody but where its user has named it.
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
"""Of a reply, besides its calls; endpoints send more."""


def served_models(
    lines: Sequence[str], *, key_variable: str | None = None, environ: Mapping[str, str] = os.environ
) -> dict[str, Endpoint]:
    """Where models answer, by name.

    lines: `NAME=ADDRESS`, the model's name at that address; or `provider/model`, of a provider whose key is in the
    environment.  key_variable: of the environment, with the key for addresses. None: they need none.
    Raises UserError for what is neither, for a name of a run's own models, and where a key is missing.
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
    """The episode of the model's one answer to the request.

    Raises BackendError where no answer can be had, UserError if address, key or name is wrong.
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
    """Of a request, besides model and messages: what everybody who speaks the protocol takes."""
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
