"""When a server has nothing to do any more."""

from __future__ import annotations

import asyncio

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from ludus.cluster.serve.activity import Activity


class ActivityCase:
    """An application under a clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.go, self.is_asked = asyncio.Event(), asyncio.Event()
        self.is_busy = False
        routes = [Route("/quick", self._quick), Route("/long", self._long), Route("/health", self._quick)]
        app = Starlette(routes=[*routes, Route("/refused", self._refused)])
        self.activity = Activity(app, is_busy=lambda: self.is_busy, ignored=("/health",), clock=lambda: self.now)
        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(self.activity), base_url="http://server")

    async def _quick(self, _: Request) -> PlainTextResponse:
        return PlainTextResponse("done")

    async def _long(self, _: Request) -> PlainTextResponse:
        self.is_asked.set()
        await self.go.wait()
        return PlainTextResponse("done")

    async def _refused(self, _: Request) -> PlainTextResponse:
        return PlainTextResponse("who are you?", 401)


def test_requests_of_those_with_the_key_count() -> None:
    """Those of monitors and strangers do not, and a request that is being answered is no idleness however long."""

    async def main() -> None:
        case = ActivityCase()
        case.now = 5.0
        for path in ("/health", "/refused"):
            await case.http.get(path)
            assert case.activity.idle_s == 5.0
        await case.http.get("/quick")
        assert case.activity.idle_s == 0.0
        asking = asyncio.create_task(case.http.get("/long"))
        await case.is_asked.wait()
        case.now = 500.0
        assert case.activity.idle_s == 0.0
        case.go.set()
        await asking
        case.now = 507.0
        assert case.activity.idle_s == 7.0

    asyncio.run(main())


def test_a_job_that_is_not_done_keeps_a_server() -> None:
    """Also where nobody waits for it; the time begins once it is done."""

    async def main() -> None:
        case = ActivityCase()
        case.is_busy = True
        activity = Activity(case.activity, is_busy=lambda: case.is_busy)
        waiting = asyncio.create_task(activity.wait_idle(0.05))
        done, _ = await asyncio.wait({waiting}, timeout=0.2)
        assert not done
        case.is_busy = False
        await asyncio.wait_for(waiting, timeout=10)

    asyncio.run(main())
