"""Headers, keys and retries of chat requests, and the list of models."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

from ludus.checks.conformance import expect
from ludus.checks.conformance.case import EXTENSION, SCRIPT, SESSIONS, case
from ludus.checks.conformance.cases.asks import check_error
from ludus.checks.conformance.cases.errors import CHAT
from ludus.checks.conformance.probe import Probe
from ludus.checks.conformance.replies import of_choice, of_chunks
from ludus.checks.conformance.sse import DONE

FIRST = {"x-stainless-retry-count": "0"}
AGAIN = {"x-stainless-retry-count": "1"}


# ---- headers


@case("chat", "headers")
async def content_type(probe: Probe) -> None:
    """An answer is application/json."""
    answer = await probe.post(CHAT, probe.chat_fields())
    expect.contains("content-type", answer.headers.get("content-type"), "application/json")


@case("chat", "headers")
async def foreign_headers(probe: Probe) -> None:
    """Headers of other services change nothing."""
    headers = {"OpenAI-Organization": "org", "OpenAI-Project": "p", "OpenAI-Beta": "x=1", "X-Request-Id": "r1"}
    answer = await probe.chat(extra_headers=headers)
    expect.text("content", answer.choices[0].message.content)


@case("chat", "headers")
async def charset(probe: Probe) -> None:
    """A charset beside the content type is taken."""
    headers = {"content-type": "application/json; charset=utf-8"}
    answer = await probe.post(CHAT, probe.chat_fields(), headers=headers)
    expect.equal("status", answer.status_code, 200)


@case("chat", "headers")
async def chunked_body(probe: Probe) -> None:
    """A body that is sent in chunks is read whole."""
    whole = json.dumps(probe.chat_fields()).encode()

    async def chunks() -> AsyncIterator[bytes]:
        for at in range(0, len(whole), 10):
            yield whole[at : at + 10]

    answer = await probe.post(CHAT, content=chunks())
    expect.equal("status", answer.status_code, 200)


@case("chat", "headers")
async def harmless_fields(probe: Probe) -> None:
    """Fields that cannot change a token are taken."""
    fields = {"user": "me", "metadata": {"a": "b"}, "store": False, "service_tier": "auto"}
    answer = await probe.chat(**fields, extra_body={"prompt_cache_key": "k", "safety_identifier": "s"})
    expect.text("content", answer.choices[0].message.content)


@case("chat", "headers", ours=EXTENSION)
async def nothing_ignored(probe: Probe) -> None:
    """Where every field acts no header says otherwise."""
    answer = await probe.post(CHAT, probe.chat_fields(top_p=0.5))
    told = [name for name in answer.headers if name.startswith("x-ludus-")]
    expect.equal("headers of Ludus", told, [])


@case("chat", "headers", ours=EXTENSION)
async def other_model(probe: Probe) -> None:
    """Another model's name is served and told."""
    answer = await probe.post(CHAT, probe.chat_fields(model="gpt-4o"))
    expect.equal("status", answer.status_code, 200)
    expect.equal("x-ludus-ignored", answer.headers.get("x-ludus-ignored"), "model")


@case("chat", "headers", ours=EXTENSION)
async def agent(probe: Probe) -> None:
    """A sub-agent names itself in a header, and its turn has the name."""
    await probe.chat(extra_headers={"x-ludus-agent": "critic"})
    expect.equal("agent of the turn", probe.local.turns[0].agent, "critic")


# ---- keys


@case("chat", "keys")
async def strange_key(probe: Probe) -> None:
    """A key that is no header's text is no crash."""
    answer = await probe.post(CHAT, probe.chat_fields(), headers={"authorization": "Bearer"}, key=None)
    expect.one_of("status", answer.status_code, (200, 400, 401, 403))


@case("chat", "keys", ours=SESSIONS)
async def secret_path(probe: Probe) -> None:
    """The secret in the URL is enough: any key is taken beside it."""
    for key in ("DUMMY", "sk-something", None):
        answer = await probe.post(CHAT, probe.chat_fields(), key=key)
        expect.equal("status", answer.status_code, 200)
    expect.equal("number of turns", len(probe.local.turns), 3)


@case("chat", "keys", ours=SESSIONS)
async def bearer(probe: Probe) -> None:
    """Without a secret in the URL the bearer token names the session."""
    client, _ = probe.with_key(probe.local.secret, root=probe.local.gateway)
    await client.chat.completions.create(**probe.chat_fields())
    expect.equal("number of turns", len(probe.local.turns), 1)


@case("chat", "keys", ours=SESSIONS)
async def x_api_key(probe: Probe) -> None:
    """X-api-key names the session too."""
    url = f"{probe.local.gateway}/v1{CHAT}"
    answer = await probe.request("POST", url, probe.chat_fields(), {"x-api-key": probe.local.secret})
    expect.equal("status", answer.status_code, 200)
    expect.equal("number of turns", len(probe.local.turns), 1)


@case("chat", "keys", ours=SESSIONS)
async def wrong_key(probe: Probe) -> None:
    """A key that names no session is a 401, and is not written back."""
    client, _ = probe.with_key("sk-a-wrong-key-0123456789", root=probe.local.gateway)
    told = await probe.refused(client.chat.completions.create(**probe.chat_fields()), status=401)
    expect.equal("exception", told.kind, "AuthenticationError")
    expect.equal("code", told.error.get("code"), "invalid_api_key")
    expect.that("the error", "0123456789" not in str(told.body), "without the key", told.body)


@case("chat", "keys", ours=SESSIONS)
async def no_key(probe: Probe) -> None:
    """No key at all is a 401."""
    check_error(await probe.request("POST", f"{probe.local.gateway}/v1{CHAT}", probe.chat_fields()), 401)


@case("chat", "keys", ours=SESSIONS)
async def wrong_secret(probe: Probe) -> None:
    """An unknown secret in the URL is a 401 that does not write it back."""
    url = f"{probe.local.gateway}/s/not-a-secret-of-anybody/v1{CHAT}"
    answer = await probe.request("POST", url, probe.chat_fields())
    check_error(answer, 401)
    expect.that("the error", "not-a-secret" not in answer.text, "without the secret", answer.text)


@case("chat", "keys", ours=SESSIONS)
async def two_sessions(probe: Probe) -> None:
    """URL and key of two sessions are a 403, and neither gets a turn."""
    other = probe.another()
    client, _ = probe.with_key(other.local.secret)
    told = await probe.refused(client.chat.completions.create(**probe.chat_fields()), status=403)
    expect.equal("code", told.error.get("code"), "session_mismatch")
    expect.equal("numbers of turns", (len(probe.local.turns), len(other.local.turns)), (0, 0))


# ---- retries


@case("chat", "retries", ours=SCRIPT)
async def equal_requests(probe: Probe) -> None:
    """Two equal requests are two answers."""
    probe.script("red", "green")
    texts = [of_choice((await probe.chat()).choices[0]).text for _ in range(2)]
    expect.equal("texts", texts, ["red", "green"])
    expect.equal("number of turns", len(probe.local.turns), 2)


@case("chat", "retries", ours=SCRIPT)
async def sdk_retry(probe: Probe) -> None:
    """A request that the SDK sends again is one turn and one answer."""
    probe.script("red", "green")
    body = probe.chat_fields()
    answers = [(await probe.post(CHAT, body, headers=headers)).json() for headers in (FIRST, AGAIN)]
    expect.equal("the second answer", answers[1], answers[0])
    expect.equal("number of turns", len(probe.local.turns), 1)


@case("chat", "retries", ours=SCRIPT)
async def streamed_retry(probe: Probe) -> None:
    """A stream that the SDK asks for again is the same stream, whole."""
    probe.script("red", "green")
    body = probe.chat_fields()
    streams = [(await probe.streamed(CHAT, body, headers=headers)).events for headers in (FIRST, AGAIN)]
    texts = [
        "".join(event.json["choices"][0]["delta"].get("content") or "" for event in events if event.data != DONE)
        for events in streams
    ]
    expect.equal("texts", texts, ["red", "red"])
    expect.equal("number of turns", len(probe.local.turns), 1)


@case("chat", "retries", ours=SCRIPT)
async def idempotency_key(probe: Probe) -> None:
    """An idempotency key stands for one answer."""
    probe.script("red", "green", "blue")
    ids = [(await probe.chat(extra_headers={"idempotency-key": key})).id for key in ("a", "a", "b")]
    expect.equal("whether the ids are the same", (ids[0] == ids[1], ids[0] == ids[2]), (True, False))
    expect.equal("number of turns", len(probe.local.turns), 2)


@case("chat", "retries", ours=EXTENSION)
async def other_body(probe: Probe) -> None:
    """An idempotency key with another body is a 409 that is not sent again."""
    await probe.chat(extra_headers={"idempotency-key": "a"})
    asked = probe.chat(temperature=0.5, extra_headers={"idempotency-key": "a"})
    told = await probe.refused(asked, status=409)
    expect.equal("code", told.error.get("code"), "idempotency_mismatch")
    expect.equal("x-should-retry", told.headers.get("x-should-retry"), "false")


@case("chat", "retries", ours=SCRIPT)
async def join(probe: Probe) -> None:
    """A retry joins the first try while that still runs."""
    probe.script("red green blue", "white")
    token_gate = probe.local.hold_tokens(2)
    body = probe.chat_fields()
    first = asyncio.create_task(probe.post(CHAT, body, headers=FIRST))
    await asyncio.to_thread(token_gate.was_reached.wait, 5.0)
    again = asyncio.create_task(probe.post(CHAT, body, headers=AGAIN))
    token_gate.release()
    answers = [(await first).json(), (await again).json()]
    expect.equal("id of the second answer", answers[1]["id"], answers[0]["id"])
    expect.equal("number of turns", len(probe.local.turns), 1)


@case("chat", "retries", ours=SESSIONS)
async def keys_apart(probe: Probe) -> None:
    """An idempotency key of another session is another request."""
    other = probe.another()
    probe.script("red")
    other.script("green")
    texts = [
        of_choice((await one.chat(extra_headers={"idempotency-key": "a"})).choices[0]).text for one in (probe, other)
    ]
    expect.equal("texts", texts, ["red", "green"])


@case("chat", "retries", ours=SCRIPT)
async def third_try(probe: Probe) -> None:
    """Streams that are asked for twice with different retry counts stay one turn."""
    probe.script("red", "green", "blue")
    for count in ("0", "1", "2"):
        reply = of_chunks(await probe.chat_chunks(extra_headers={"x-stainless-retry-count": count}))
        expect.equal("text", reply.text, "red")
    expect.equal("number of turns", len(probe.local.turns), 1)


# ---- models


@case("models", "text")
async def listed(probe: Probe) -> None:
    """The list of models is there, and holds the one that is asked."""
    models = [model async for model in probe.openai.models.list()]
    expect.one_of("the model", probe.model, [model.id for model in models])


@case("models", "text")
async def list_shape(probe: Probe) -> None:
    """The list is an object `list` of objects `model`."""
    body = (await probe.get("/models")).json()
    expect.equal("object", body.get("object"), "list")
    for model in body["data"]:
        expect.equal("object of a model", model.get("object"), "model")
        expect.text("id of a model", model.get("id"))
        expect.that("created", isinstance(model.get("created"), int), "an integer", model.get("created"))
        expect.text("owned_by", model.get("owned_by"))


@case("models", "text")
async def retrieved(probe: Probe) -> None:
    """One model can be asked for by its name."""
    expect.equal("id", (await probe.openai.models.retrieve(probe.model)).id, probe.model)


@case("models", "errors")
async def unknown_model(probe: Probe) -> None:
    """A model that does not exist is a 404 in the protocol's shape."""
    check_error(await probe.get("/models/no-such-model"), 404)


@case("models", "errors")
async def unknown_sdk(probe: Probe) -> None:
    """A model that does not exist is the SDK's NotFoundError."""
    told = await probe.refused(probe.openai.models.retrieve("no-such-model"), status=404)
    expect.equal("exception", told.kind, "NotFoundError")


@case("models", "keys", ours=SESSIONS)
async def closed_list(probe: Probe) -> None:
    """The list is kept from keys that name no session."""
    client, _ = probe.with_key("sk-wrong", root=probe.local.gateway)
    await probe.refused(client.models.list(), status=401)


@case("models", "text", ours=EXTENSION)
async def anthropic_list(probe: Probe) -> None:
    """Anthropic's SDK reads the list too."""
    models = [model async for model in probe.anthropic.models.list()]
    expect.one_of("the model", probe.model, [model.id for model in models])
    expect.equal("types", {model.type for model in models}, {"model"})


@case("models", "headers", ours=EXTENSION)
async def healthy(probe: Probe) -> None:
    """A health probe is answered without a key."""
    answer = await probe.request("GET", f"{probe.local.gateway}/healthz")
    expect.equal("status", answer.status_code, 200)
