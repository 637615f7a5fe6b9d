"""Routes of FastAPI as every server here has them: the key first, a bounded body, our own words."""

import pytest
from fastapi import Request, Response
from starlette.responses import JSONResponse
from starlette.testclient import TestClient

from ludus.errors import AgentError
from ludus.http.api import application, guarded
from ludus.http.body import Body, read_model


class Sum(Body):
    first: int
    second: int = 1


def check(request: Request) -> None:
    if request.headers.get("authorization") != "Bearer key":
        raise AgentError("no key", status=401)


async def refuse(request: Request, error: Exception) -> Response:
    return JSONResponse({"said": str(error)}, getattr(error, "status", 404))


async def add(number: int, body: Sum, twice: bool = False) -> dict[str, int]:
    return {"id": number, "sum": (body.first + body.second) * (2 if twice else 1)}


@pytest.fixture
def client() -> TestClient:
    api = guarded(check, read_model, most_bytes=100)
    api.post("/sums/{number}")(add)
    return TestClient(application(api, refuse=refuse, no_route=refuse), headers={"authorization": "Bearer key"})


def test_a_body_is_read_whatever_it_is_called(client: TestClient) -> None:
    """Also without a content type, or with that of a form, as curl sends it."""
    for kind in ("application/json", "application/x-www-form-urlencoded", ""):
        answer = client.post("/sums/7?twice=true", content=b'{"first": 2}', headers={"content-type": kind})
        assert (answer.status_code, answer.json()) == (200, {"id": 7, "sum": 6})


def test_a_strangers_body_is_not_read(client: TestClient) -> None:
    """The key is asked for before the first byte."""
    answer = client.post("/sums/7", content=b" " * 1000, headers={"authorization": "Bearer other"})
    assert (answer.status_code, answer.json()) == (401, {"said": "no key"})
    assert client.post("/sums/7", content=b"{", headers={"authorization": ""}).status_code == 401


BODIES = {
    "a field that nobody knows": (b'{"first": 2, "secnd": 1}', 400, "Did you mean 'second'?"),
    "half a character": (b'{"first": "\\ud83d"}', 400, "not valid JSON"),
    "a number that is none": (b'{"first": NaN}', 400, "not valid JSON"),
    "lists without end": (b"[" * 100, 400, "not valid JSON"),
    "bytes that are no text": (b'{"first": "\xff\xfe"}', 400, "not valid JSON"),
    "no JSON": (b"first=2", 400, "not valid JSON"),
    "no object": (b"[1]", 400, "must be a JSON object"),
    "more than may be sent": (b" " * 101, 413, "more than 100 bytes"),
    "nothing": (b"", 400, "Missing required parameter: 'first'"),
}


@pytest.mark.parametrize(("content", "status", "said"), BODIES.values(), ids=BODIES)
def test_what_cannot_be_is_refused_in_our_words(client: TestClient, content: bytes, status: int, said: str) -> None:
    """Unknown and missing fields, what no text can hold, and what is too much."""
    answer = client.post("/sums/7", content=content)
    assert answer.status_code == status and said in answer.json()["said"]


def test_other_paths_are_nowhere(client: TestClient) -> None:
    """No redirect, no page."""
    assert client.get("/sums/7/").status_code == client.get("/docs").status_code == 404
