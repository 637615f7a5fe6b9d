"""What a server answers to requests that are wrong: the status, the shape, and what an SDK makes of it."""

from __future__ import annotations

import json
from typing import Any

import httpx

from ludus.checks.conformance import expect
from ludus.checks.conformance.case import EXTENSION, SCRIPT, case
from ludus.checks.conformance.probe import ASK, Probe
from ludus.errors import BackendError

CHAT = "/chat/completions"
HUGE_BYTES = 65 * 2**20  # more text than the context of any model holds


def check_error(answer: httpx.Response, *statuses: int) -> dict[str, Any]:
    """The error in `answer`, in the shape of OpenAI's protocols."""
    expect.one_of(f"status of {answer.text[:120]!r}", answer.status_code, statuses)
    expect.contains("content-type", answer.headers.get("content-type"), "application/json")
    body = expect.json_object("the body", answer.text)
    error = body.get("error")
    if not isinstance(error, dict):
        raise expect.UnmetError("the body", "an object under 'error'", body)
    expect.text("message of the error", error.get("message"))
    expect.text("type of the error", error.get("type"))
    return error


@case("errors", "errors", "a route that does not exist is a 404 in the protocol's shape")
async def unknown_route(probe: Probe) -> None:
    check_error(await probe.post("/telepathy", {}), 404)


@case("errors", "errors", "a GET where only POST is served is a 405 in the protocol's shape")
async def wrong_method(probe: Probe) -> None:
    check_error(await probe.get(CHAT), 405)


@case("errors", "errors", "a body that is no JSON is refused")
async def no_json(probe: Probe) -> None:
    check_error(await probe.post(CHAT, content=b"{messages: []}"), 400, 422)


@case("errors", "errors", "a body that is cut is refused")
async def cut_json(probe: Probe) -> None:
    whole = json.dumps(probe.chat_fields()).encode()
    check_error(await probe.post(CHAT, content=whole[:-2]), 400, 422)


@case("errors", "errors", "an empty body is refused")
async def empty_body(probe: Probe) -> None:
    check_error(await probe.post(CHAT, content=b""), 400, 422)


@case("errors", "errors", "a body that is a list is refused")
async def list_body(probe: Probe) -> None:
    check_error(await probe.post(CHAT, [probe.chat_fields()]), 400, 422)


@case("errors", "errors", "bytes that are no UTF-8 are refused")
async def no_utf8(probe: Probe) -> None:
    body = json.dumps(probe.chat_fields()).encode().replace(b"colours", b"\xff\xfe\xfd")
    check_error(await probe.post(CHAT, content=body), 400, 422)


@case("errors", "errors", "JSON nested a hundred thousand deep is refused, not a crash")
async def deep_json(probe: Probe) -> None:
    check_error(await probe.post(CHAT, content=b'{"messages": ' + b"[" * 100_000), 400, 413, 422)


@case("errors", "errors", "half a surrogate pair, which no text can hold, is refused", ours=EXTENSION)
async def half_surrogate(probe: Probe) -> None:
    body = b'{"model": "default", "messages": [{"role": "user", "content": "\\ud83d"}]}'
    check_error(await probe.post(CHAT, content=body), 400)


@case("errors", "errors", "a request without messages is refused")
async def no_messages(probe: Probe) -> None:
    check_error(await probe.post(CHAT, {"model": probe.model}), 400)


@case("errors", "errors", "an empty list of messages is refused")
async def empty_messages(probe: Probe) -> None:
    await probe.refused(probe.chat(messages=[]))


@case("errors", "errors", "messages that are text are refused")
async def text_messages(probe: Probe) -> None:
    await probe.refused(probe.chat(messages="Name a colour."))


@case("errors", "errors", "a message without a role is refused")
async def no_role(probe: Probe) -> None:
    await probe.refused(probe.chat(messages=[{"content": "Name a colour."}]))


@case("errors", "errors", "a role that the protocol does not know is refused")
async def unknown_role(probe: Probe) -> None:
    await probe.refused(probe.chat(messages=[{"role": "king", "content": "Name a colour."}]))


@case("errors", "errors", "a user's message without content is refused")
async def no_content(probe: Probe) -> None:
    await probe.refused(probe.chat(messages=[{"role": "user"}]))


@case("errors", "errors", "content that is a number is refused")
async def numeric_content(probe: Probe) -> None:
    await probe.refused(probe.chat(messages=[{"role": "user", "content": 7}]))


@case("errors", "errors", "a part of content of an unknown type is refused")
async def unknown_part(probe: Probe) -> None:
    await probe.refused(probe.chat(messages=[{"role": "user", "content": [{"type": "smell", "smell": "rose"}]}]))


@case("errors", "errors", "an image is refused where the model reads text only", ours=EXTENSION)
async def image(probe: Probe) -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    told = await probe.refused(probe.chat(messages=[{"role": "user", "content": [part]}]))
    expect.equal("code", told.error.get("code"), "unsupported_content")


@case("errors", "errors", "a tool's result that names no call is refused")
async def nameless_result(probe: Probe) -> None:
    await probe.refused(probe.chat(messages=[*ASK, {"role": "tool", "content": "18 degrees"}]))


@case("errors", "errors", "a misspelt field is refused, not left unread")
async def misspelt(probe: Probe) -> None:
    await probe.refused(probe.chat(extra_body={"temprature": 1}))


@case("errors", "errors", "the refusal of a misspelt field names it, and the field that was meant", ours=EXTENSION)
async def misspelt_named(probe: Probe) -> None:
    told = await probe.refused(probe.chat(extra_body={"temprature": 1}), param="temprature")
    expect.contains("message", told.error.get("message"), "'temperature'")
    expect.equal("code", told.error.get("code"), "unknown_parameter")


@case("errors", "errors", "stream_options without stream is refused")
async def options_without_stream(probe: Probe) -> None:
    await probe.refused(probe.chat(stream_options={"include_usage": True}))


@case("errors", "errors", "a stream in words is refused")
async def stream_in_words(probe: Probe) -> None:
    check_error(await probe.post(CHAT, {**probe.chat_fields(), "stream": "please"}), 400, 422)


@case("errors", "errors", "a refused stream is a plain error with its status, not an event")
async def refused_stream(probe: Probe) -> None:
    check_error(await probe.post(CHAT, {**probe.chat_fields(n=0), "stream": True}), 400, 422)


@case("errors", "errors", "the SDK raises BadRequestError with the error's message")
async def sdk_error(probe: Probe) -> None:
    told = await probe.refused(probe.chat(temperature=-1))
    expect.equal("exception", told.kind, "BadRequestError")
    expect.text("message", told.error.get("message"))


@case("errors", "errors", "an error has exactly the protocol's four fields", ours=EXTENSION)
async def four_fields(probe: Probe) -> None:
    error = check_error(await probe.post(CHAT, probe.chat_fields(temperature=-1)), 400)
    expect.equal("fields of the error", sorted(error), ["code", "message", "param", "type"])
    expect.equal("code", error["code"], "invalid_value")
    expect.equal("type", error["type"], "invalid_request_error")


@case("errors", "errors", "after a refused request the next one is answered")
async def goes_on(probe: Probe) -> None:
    await probe.refused(probe.chat(temperature=-1))
    expect.text("content", (await probe.chat()).choices[0].message.content)


@case("errors", "errors", "a refused request leaves no turn and asks no engine", ours=SCRIPT)
async def no_turn(probe: Probe) -> None:
    await probe.refused(probe.chat(temperature=-1))
    expect.equal("turns and calls", (len(probe.own.turns), len(probe.own.calls)), (0, 0))


@case("errors", "headers", "a 400 tells SDKs not to send the request again", ours=EXTENSION)
async def no_retry(probe: Probe) -> None:
    told = await probe.refused(probe.chat(temperature=-1))
    expect.equal("x-should-retry", told.headers.get("x-should-retry"), "false")


@case("errors", "headers", "a failing engine is a 500 that SDKs may send again", ours=SCRIPT)
async def may_retry(probe: Probe) -> None:
    probe.own.script(BackendError("out of memory"))
    told = await probe.refused(probe.chat(), status=500)
    expect.equal("x-should-retry", told.headers.get("x-should-retry"), "true")
    expect.equal("code", told.error.get("code"), "backend_error")


@case("errors", "retries", "the SDK's second try after a failing engine is answered, as one turn", ours=SCRIPT)
async def second_try(probe: Probe) -> None:
    probe.own.script(BackendError("out of memory"), "red")
    client, _ = probe.retrying(1)
    answer = await client.chat.completions.create(**probe.chat_fields())
    expect.equal("content", answer.choices[0].message.content, "red")
    expect.equal("number of turns", len(probe.own.turns), 1)


@case("errors", "limits", "a body beyond the server's limit is a 413, and the next request is answered", ours=EXTENSION)
async def huge_body(probe: Probe) -> None:
    check_error(await probe.post(CHAT, content=b" " * HUGE_BYTES), 413)
    expect.text("content", (await probe.chat()).choices[0].message.content)
