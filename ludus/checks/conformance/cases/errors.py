"""What a server answers to requests that are wrong: the status, the shape, and what an SDK makes of it."""

from __future__ import annotations

from ludus.checks.conformance import expect
from ludus.checks.conformance.asks import check_error
from ludus.checks.conformance.case import EXTENSION, SCRIPT, case
from ludus.checks.conformance.expect import TEXT, containing
from ludus.checks.conformance.probe import Probe
from ludus.errors import BackendError

HUGE_BYTES = 65 * 2**20  # more text than the context of any model holds


@case("errors", "errors")
async def wrong_method(probe: Probe) -> None:
    """A GET where only POST is served is a 405 in the protocol's shape."""
    check_error(await probe.send("GET", f"/v1{probe.words.path}"), 405)


@case("errors", "errors")
async def unknown_route(probe: Probe) -> None:
    """A route that does not exist is a 404 in the protocol's shape."""
    check_error(await probe.send("POST", "/v1/telepathy", {}), 404)


@case("errors", "errors", ours=EXTENSION)
async def half_surrogate(probe: Probe) -> None:
    """Half a surrogate pair, which no text can hold, is refused."""
    body = b'{"model": "default", "messages": [{"role": "user", "content": "\\ud83d"}]}'
    check_error(await probe.post(content=body), 400)


@case("errors", "errors", ours=EXTENSION)
async def four_fields(probe: Probe) -> None:
    """An error has exactly the protocol's four fields."""
    answer = await probe.post(temperature=-1)
    check_error(answer, 400, code="invalid_value", type="invalid_request_error")
    expect.equal("fields of the error", sorted(answer.json()["error"]), ["code", "message", "param", "type"])


@case("errors", "errors", ours=EXTENSION)
async def misspelt_named(probe: Probe) -> None:
    """The refusal of a misspelt field names it, and the field that was meant."""
    asked = probe.ask(extra_body={"temprature": 1})
    await probe.refused(asked, param="temprature", code="unknown_parameter", message=containing("'temperature'"))


@case("errors", "errors")
async def goes_on(probe: Probe) -> None:
    """After a refused request the next one is answered."""
    await probe.refused(probe.ask(temperature=-1))
    expect.parts(await probe.ask(), text=TEXT)


@case("errors", "errors", ours=SCRIPT)
async def no_turn(probe: Probe) -> None:
    """A refused request leaves no turn and asks no engine."""
    await probe.refused(probe.ask(temperature=-1))
    expect.equal("turns and calls", (len(probe.local.turns), len(probe.local.calls)), (0, 0))


@case("errors", "headers", ours=EXTENSION)
async def no_retry(probe: Probe) -> None:
    """A 400 asks SDKs not to send the request again."""
    await probe.refused(probe.ask(temperature=-1), retry="false")


@case("errors", "headers", ours=SCRIPT)
async def may_retry(probe: Probe) -> None:
    """A failing engine is a 500 that SDKs may send again."""
    await probe.refused(probe.ask(BackendError("out of memory")), 500, retry="true", code="backend_error")


@case("errors", "retries", ours=SCRIPT, turns=1)
async def second_try(probe: Probe) -> None:
    """The SDK's second try after a failing engine is answered, as one turn."""
    reply = await probe.but(max_retries=1).ask(BackendError("out of memory"), "red")
    expect.parts(reply, text="red")


@case("errors", "limits", ours=EXTENSION)
async def huge_body(probe: Probe) -> None:
    """A body beyond the server's limit is a 413, and the next request is answered."""
    check_error(await probe.post(content=b" " * HUGE_BYTES), 413)
    expect.parts(await probe.ask(), text=TEXT)
