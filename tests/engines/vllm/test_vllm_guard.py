"""The key before a vLLM server: whoever has it gets in, everybody else learns only that the server lives."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from ludus_vllm.guard import KEY_VARIABLE, RequireKey


def answers(app: RequireKey, headers: list[tuple[str, str]]) -> dict[str, int]:
    async def scenario() -> dict[str, int]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://vllm") as http:
            return {path: (await http.post(path, headers=headers)).status_code for path in ("/health", "/pause")}

    return asyncio.run(scenario())


def test_only_the_key_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    """No key, another, two at once, or the right one in another scheme do not; health is for everybody."""
    monkeypatch.setenv(KEY_VARIABLE, "right")
    served = [Route(path, lambda _: PlainTextResponse("served"), methods=["POST"]) for path in ("/health", "/pause")]
    app = RequireKey(Starlette(routes=served))
    right = ("authorization", "Bearer right")
    assert answers(app, [right]) == {"/health": 200, "/pause": 200}
    closed = {"/health": 200, "/pause": 401}
    for headers in ([], [("authorization", "Bearer wrong")], [right, right], [("authorization", "Basic right")]):
        assert answers(app, headers) == closed, headers


def test_without_a_key_nothing_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that was started without one does not come up open."""
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    with pytest.raises(KeyError, match=KEY_VARIABLE):
        RequireKey(Starlette())
