"""Headers, keys and retries of chat requests, and the list of models."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

from ludus.checks.conformance import expect
from ludus.checks.conformance.asks import check_error
from ludus.checks.conformance.case import EXTENSION, SCRIPT, SESSIONS, case
from ludus.checks.conformance.expect import TEXT, containing, one_of, without
from ludus.checks.conformance.probe import Probe, events_of
from ludus.checks.conformance.sse import DONE

RETRIES = [{"x-stainless-retry-count": count} for count in ("0", "1", "2")]
ONCE = {"idempotency-key": "a"}


# ---- headers


@case("chat", "headers")
async def content_type(probe: Probe) -> None:
    """An answer is application/json."""
    kind = (await probe.post()).headers.get("content-type")
    expect.equal("content-type", kind, containing("application/json"))


@case("chat", "headers")
async def charset(probe: Probe) -> None:
    """A charset beside the content type is taken."""
    answer = await probe.post(headers={"content-type": "application/json; charset=utf-8"})
    expect.parts(answer, status_code=200)


@case("chat", "headers")
async def chunked_body(probe: Probe) -> None:
    """A body that is sent in chunks is read whole."""
    whole = json.dumps(probe.fields()).encode()

    async def chunks() -> AsyncIterator[bytes]:
        for at in range(0, len(whole), 10):
            yield whole[at : at + 10]

    expect.parts(await probe.post(content=chunks()), status_code=200)


@case("chat", "headers", ours=EXTENSION)
async def nothing_ignored(probe: Probe) -> None:
    """Where every field acts no header names one."""
    answer = await probe.post(top_p=0.5)
    expect.equal("headers of Ludus", [name for name in answer.headers if name.startswith("x-ludus-")], [])


@case("chat", "headers", ours=EXTENSION)
async def agent(probe: Probe) -> None:
    """A sub-agent names itself in a header, and its turn has the name."""
    await probe.ask(extra_headers={"x-ludus-agent": "critic"})
    expect.parts(probe.local.turns[0], agent="critic")


# ---- keys


@case("chat", "keys")
async def strange_key(probe: Probe) -> None:
    """A key that is no header's text is no crash."""
    answer = await probe.but(key=None).post(headers={"authorization": "Bearer"})
    expect.parts(answer, status_code=one_of(200, 400, 401, 403))


@case("chat", "keys", ours=SESSIONS, turns=3)
async def secret_path(probe: Probe) -> None:
    """The secret in the URL is enough: any key is taken beside it."""
    for key in ("DUMMY", "sk-something", None):
        expect.parts(await probe.but(key=key).post(), status_code=200)


@case("chat", "keys", ours=SESSIONS, turns=1)
async def x_api_key(probe: Probe) -> None:
    """X-api-key names the session too."""
    without_key = probe.but(root=probe.local.gateway, key=None)
    expect.parts(await without_key.post(headers={"x-api-key": probe.local.secret}), status_code=200)


@case("chat", "keys", ours=SESSIONS)
async def no_key(probe: Probe) -> None:
    """No key at all is a 401."""
    check_error(await probe.but(root=probe.local.gateway, key=None).post(), 401)


@case("chat", "keys", ours=SESSIONS)
async def wrong_secret(probe: Probe) -> None:
    """An unknown secret in the URL is a 401 that does not write it back."""
    answer = await probe.but(root=f"{probe.local.gateway}/s/not-a-secret-of-anybody", key=None).post()
    check_error(answer, 401)
    expect.parts(answer, text=without("not-a-secret"))


@case("chat", "keys", ours=SESSIONS)
async def two_sessions(probe: Probe) -> None:
    """URL and key of two sessions are a 403, and neither gets a turn."""
    other = probe.another()
    await probe.refused(probe.but(key=other.local.secret).ask(), 403, code="session_mismatch")
    expect.equal("numbers of turns", (len(probe.local.turns), len(other.local.turns)), (0, 0))


# ---- retries


@case("chat", "retries", ours=SCRIPT, turns=2)
async def equal_requests(probe: Probe) -> None:
    """Two equal requests are two answers."""
    texts = [(await probe.ask(text)).text for text in ("red", "green")]
    expect.equal("texts", texts, ["red", "green"])


@case("chat", "retries", ours=SCRIPT, turns=1)
async def streamed_retry(probe: Probe) -> None:
    """A stream that the SDK asks for again is the same stream, whole."""
    probe.script("red", "green")
    streams = [events_of(await probe.post(stream=True, headers=headers)) for headers in RETRIES[:2]]
    texts = ["".join(probe.words.text_in(event.json) for event in events if event.data != DONE) for events in streams]
    expect.equal("texts", texts, ["red", "red"])


@case("chat", "retries", ours=SCRIPT, turns=2)
async def idempotency_key(probe: Probe) -> None:
    """An idempotency key stands for one answer."""
    first, again, other = [(await probe.ask(extra_headers={"idempotency-key": key})).id for key in ("a", "a", "b")]
    expect.equal("whether the ids are the same", (first == again, first == other), (True, False))


@case("chat", "retries", ours=EXTENSION)
async def other_body(probe: Probe) -> None:
    """An idempotency key with another body is a 409 that is not sent again."""
    await probe.ask(extra_headers=ONCE)
    asked = probe.ask(temperature=0.5, extra_headers=ONCE)
    await probe.refused(asked, 409, code="idempotency_mismatch", retry="false")


@case("chat", "retries", ours=SCRIPT, turns=1)
async def join(probe: Probe) -> None:
    """A retry joins the first try while that still runs."""
    probe.script("red green blue", "white")
    token_gate = probe.local.hold_tokens(2)
    first = asyncio.create_task(probe.post(headers=RETRIES[0]))
    await asyncio.to_thread(token_gate.was_reached.wait, 5.0)
    again = asyncio.create_task(probe.post(headers=RETRIES[1]))
    token_gate.release()
    expect.equal("id of the second answer", (await again).json()["id"], (await first).json()["id"])


@case("chat", "retries", ours=SESSIONS)
async def keys_apart(probe: Probe) -> None:
    """An idempotency key of another session is another request."""
    asked = ((probe, "red"), (probe.another(), "green"))
    texts = [(await one.ask(text, extra_headers=ONCE)).text for one, text in asked]
    expect.equal("texts", texts, ["red", "green"])


@case("chat", "retries", ours=SCRIPT, turns=1)
async def third_try(probe: Probe) -> None:
    """Streams that are asked for twice with different retry counts stay one turn."""
    probe.script("red", "green", "blue")
    texts = [(await probe.stream(extra_headers=headers)).text for headers in RETRIES]
    expect.equal("texts", texts, ["red", "red", "red"])


# ---- models


@case("models", "text")
async def listed(probe: Probe) -> None:
    """The list of models is there, and holds the one that is asked."""
    models = [model async for model in probe.openai.models.list()]
    expect.equal("the model", probe.model, one_of(*(model.id for model in models)))


@case("models", "text")
async def list_shape(probe: Probe) -> None:
    """The list is an object `list` of objects `model`."""
    body = (await probe.send("GET", "/v1/models")).json()
    expect.parts(body, object="list")
    for model in body["data"]:
        expect.parts(model, object="model", id=TEXT, owned_by=TEXT)
        expect.that("created", isinstance(model.get("created"), int), "an integer", model.get("created"))


@case("models", "text")
async def retrieved(probe: Probe) -> None:
    """One model can be asked for by its name."""
    expect.parts(await probe.openai.models.retrieve(probe.model), id=probe.model)


@case("models", "errors")
async def unknown_model(probe: Probe) -> None:
    """A model that does not exist is a 404 in the protocol's shape."""
    check_error(await probe.send("GET", "/v1/models/no-such-model"), 404)


@case("models", "errors")
async def unknown_sdk(probe: Probe) -> None:
    """A model that does not exist is the SDK's NotFoundError."""
    await probe.refused(probe.openai.models.retrieve("no-such-model"), 404, kind="NotFoundError")


@case("models", "keys", ours=SESSIONS)
async def closed_list(probe: Probe) -> None:
    """The list is kept from keys that name no session."""
    await probe.refused(probe.but(key="sk-wrong", root=probe.local.gateway).openai.models.list(), 401)


@case("models", "text", ours=EXTENSION)
async def anthropic_list(probe: Probe) -> None:
    """Anthropic's SDK reads the list too."""
    models = [model async for model in probe.anthropic.models.list()]
    expect.equal("the model", probe.model, one_of(*(model.id for model in models)))
    expect.equal("types", {model.type for model in models}, {"model"})


@case("models", "headers", ours=EXTENSION)
async def healthy(probe: Probe) -> None:
    """A health probe is answered without a key."""
    expect.parts(await probe.but(root=probe.local.gateway, key=None).send("GET", "/healthz"), status_code=200)
