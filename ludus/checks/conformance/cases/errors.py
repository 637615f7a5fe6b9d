"""What a server answers to requests that are wrong: the status, the shape, and what an SDK makes of it."""

from __future__ import annotations

from ludus.checks.conformance import expect
from ludus.checks.conformance.case import EXTENSION, SCRIPT, case
from ludus.checks.conformance.cases.asks import check_error
from ludus.checks.conformance.probe import Probe
from ludus.errors import BackendError

CHAT = "/chat/completions"
HUGE_BYTES = 65 * 2**20  # more text than the context of any model holds


@case("errors", "errors")
async def wrong_method(probe: Probe) -> None:
    """A GET where only POST is served is a 405 in the protocol's shape."""
    check_error(await probe.get(CHAT), 405)


@case("errors", "errors", ours=EXTENSION)
async def half_surrogate(probe: Probe) -> None:
    """Half a surrogate pair, which no text can hold, is refused."""
    body = b'{"model": "default", "messages": [{"role": "user", "content": "\\ud83d"}]}'
    check_error(await probe.post(CHAT, content=body), 400)


@case("errors", "errors", ours=EXTENSION)
async def image(probe: Probe) -> None:
    """An image is refused where the model reads text only."""
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    told = await probe.refused(probe.chat(messages=[{"role": "user", "content": [part]}]))
    expect.equal("code", told.error.get("code"), "unsupported_content")


@case("errors", "errors", ours=EXTENSION)
async def misspelt_named(probe: Probe) -> None:
    """The refusal of a misspelt field names it, and the field that was meant."""
    told = await probe.refused(probe.chat(extra_body={"temprature": 1}), param="temprature")
    expect.contains("message", told.error.get("message"), "'temperature'")
    expect.equal("code", told.error.get("code"), "unknown_parameter")


@case("errors", "errors")
async def sdk_error(probe: Probe) -> None:
    """The SDK raises BadRequestError with the error's message."""
    told = await probe.refused(probe.chat(temperature=-1))
    expect.equal("exception", told.kind, "BadRequestError")
    expect.text("message", told.error.get("message"))


@case("errors", "errors", ours=EXTENSION)
async def four_fields(probe: Probe) -> None:
    """An error has exactly the protocol's four fields."""
    error = check_error(await probe.post(CHAT, probe.chat_fields(temperature=-1)), 400)
    expect.equal("fields of the error", sorted(error), ["code", "message", "param", "type"])
    expect.equal("code", error["code"], "invalid_value")
    expect.equal("type", error["type"], "invalid_request_error")


@case("errors", "errors")
async def goes_on(probe: Probe) -> None:
    """After a refused request the next one is answered."""
    await probe.refused(probe.chat(temperature=-1))
    expect.text("content", (await probe.chat()).choices[0].message.content)


@case("errors", "errors", ours=SCRIPT)
async def no_turn(probe: Probe) -> None:
    """A refused request leaves no turn and asks no engine."""
    await probe.refused(probe.chat(temperature=-1))
    expect.equal("turns and calls", (len(probe.local.turns), len(probe.local.calls)), (0, 0))


@case("errors", "headers", ours=EXTENSION)
async def no_retry(probe: Probe) -> None:
    """A 400 tells SDKs not to send the request again."""
    told = await probe.refused(probe.chat(temperature=-1))
    expect.equal("x-should-retry", told.headers.get("x-should-retry"), "false")


@case("errors", "headers", ours=SCRIPT)
async def may_retry(probe: Probe) -> None:
    """A failing engine is a 500 that SDKs may send again."""
    probe.local.script(BackendError("out of memory"))
    told = await probe.refused(probe.chat(), status=500)
    expect.equal("x-should-retry", told.headers.get("x-should-retry"), "true")
    expect.equal("code", told.error.get("code"), "backend_error")


@case("errors", "retries", ours=SCRIPT)
async def second_try(probe: Probe) -> None:
    """The SDK's second try after a failing engine is answered, as one turn."""
    probe.local.script(BackendError("out of memory"), "red")
    client, _ = probe.retrying(1)
    answer = await client.chat.completions.create(**probe.chat_fields())
    expect.equal("content", answer.choices[0].message.content, "red")
    expect.equal("number of turns", len(probe.local.turns), 1)


@case("errors", "limits", ours=EXTENSION)
async def huge_body(probe: Probe) -> None:
    """A body beyond the server's limit is a 413, and the next request is answered."""
    check_error(await probe.post(CHAT, content=b" " * HUGE_BYTES), 413)
    expect.text("content", (await probe.chat()).choices[0].message.content)


@case("errors", "errors")
async def unknown_route(probe: Probe) -> None:
    """A route that does not exist is a 404 in the protocol's shape."""
    check_error(await probe.post("/telepathy", {}), 404)
