"""Running cases: what each way to end becomes, on the local server and on another one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from ludus.checks.conformance import expect
from ludus.checks.conformance.case import SCRIPT, case
from ludus.checks.conformance.clients import Clients
from ludus.checks.conformance.probe import Probe
from ludus.checks.conformance.run import SuiteReport, remote_target, run_cases
from ludus.checks.conformance.suite import chosen
from ludus.errors import UserError
from ludus.http.server import HttpServer
from tests.checks.conformance.conftest import PlayOwn


async def chat(request: Request) -> Response:
    """As little of Chat Completions as answers a question."""
    body = await request.json()
    head = {"id": "c1", "created": 1_700_000_000, "model": "tiny"}
    if body.get("stream"):
        choice = {"index": 0, "delta": {"content": "red"}, "finish_reason": "stop"}
        chunk = {**head, "object": "chat.completion.chunk", "choices": [choice]}
        return StreamingResponse(iter([f"data: {json.dumps(chunk)}\n\n"]), media_type="text/event-stream")
    choice = {"index": 0, "message": {"role": "assistant", "content": "red"}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 4, "completion_tokens": 1, "total_tokens": 5}
    return JSONResponse({**head, "object": "chat.completion", "choices": [choice], "usage": usage})


async def models(request: Request) -> Response:
    return JSONResponse({"object": "list", "data": [{"id": "tiny", "object": "model", "created": 1, "owned_by": "me"}]})


@pytest.fixture
def fake() -> Iterator[str]:
    """Base URL of another server, which is not good."""
    routes = [Route("/v1/chat/completions", chat, methods=["POST"]), Route("/v1/models", models)]
    with HttpServer(Starlette(routes=routes), name="another") as server:
        yield f"{server.base_url}/v1"


def play_foreign(url: str, pattern: str) -> SuiteReport:
    async def main() -> SuiteReport:
        async with Clients(30.0) as clients:
            target = await remote_target(clients, url, model=None, api_key="none")
            return await run_cases(chosen(pattern), target, clients, timeout_s=30.0)

    return asyncio.run(main())


def test_another_server_fails_where_it_is_wrong(fake: str) -> None:
    """A small server passes what it keeps, fails with reasons, and is not asked what only Ludus has."""
    report = play_foreign(fake, "chat/streaming")
    verdicts = {result.case.name.rpartition("/")[2]: result for result in report.results}
    assert verdicts["one_head"].verdict == "passed"
    assert verdicts["done"].verdict == "failed" and verdicts["done"].expected == "'[DONE]'"
    assert verdicts["role_first"].verdict == "failed" and verdicts["role_first"].got == "None"
    assert verdicts["truly_streamed"].verdict == "skipped"
    assert verdicts["truly_streamed"].what == f"not offered: {SCRIPT}"
    assert not report.ok


def test_a_protocol_that_a_server_lacks_fails_with_its_status(fake: str) -> None:
    """Without Messages every case of it fails, and says what the server answered."""
    report = play_foreign(fake, "messages/text")
    finished = [result for result in report.results if result.verdict != "skipped"]
    assert finished and all(result.verdict == "failed" and "status 404" in result.got for result in finished)


def test_a_server_that_is_none_is_the_users_error() -> None:
    """An address where nobody answers is reported, with what to check."""
    with pytest.raises(UserError, match="check --base-url"):
        play_foreign("http://127.0.0.1:9/v1", "chat/text")


@case("chat", "text")
async def keeps(probe: Probe) -> None:
    """Always."""
    await probe.ask()


@case("chat", "text")
async def breaks(probe: Probe) -> None:
    """Never."""
    expect.equal("content", (await probe.ask()).text, "no colour")


@case("chat", "text")
async def crashes(probe: Probe) -> None:
    """A case that is wrong itself."""
    raise KeyError("no such thing")


@case("chat", "text")
async def hangs(probe: Probe) -> None:
    """A case that waits for ever."""
    await asyncio.Event().wait()


@case("chat", "text")
async def is_refused(probe: Probe) -> None:
    """A request that is refused."""
    await probe.ask(temperature=-1)


def test_every_end_of_a_case_is_a_verdict(play_own: PlayOwn) -> None:
    """Passing, an unmet law, a crash, a refused request: the others go on, and each says what was there."""
    report = play_own([keeps, breaks, crashes, is_refused])
    assert [result.verdict for result in report.results] == ["passed", "failed", "failed", "failed"]
    _, unmet, crashed, refused = report.results
    assert (unmet.what, unmet.expected) == ("content", "'no colour'")
    assert crashed.got.startswith("KeyError") and "temperature" in refused.got
    assert report.to_json()["failed"] == 3


def test_a_case_that_hangs_fails_after_its_time(play_own: PlayOwn) -> None:
    """The limit of a case is its end."""
    (result,) = play_own([hangs], timeout_s=0.05).results
    assert (result.verdict, result.expected) == ("failed", "an end within 0.05 s")
