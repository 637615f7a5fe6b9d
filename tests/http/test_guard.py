"""Pages of the web, and names that were made to lead here, reach no server of ours."""

from __future__ import annotations

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from ludus.http.guard import Guard
from ludus.http.server import HttpServer

# Each is an attack by name, of which the list in docs/promises.md is made.
FOREIGN_NAMES = ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8100", "localhost2")
NO_NAMES = ("", "[::1", "a b", "user@127.0.0.1", "127.0.0.1/..", "a:b:c", "\xff:99999999")
FOREIGN_PAGES: dict[str, dict[str, str]] = {
    "another site": {"origin": "http://evil.example"},
    "a page without an origin": {"origin": "null"},
    "another server of this machine": {"origin": "http://localhost:3000"},
    "a name that begins like ours": {"origin": "https://127.0.0.1.evil.example:8100"},
    "an origin that is none": {"origin": "http://[::1"},
    "a request that says it crosses sites": {"sec-fetch-site": "cross-site"},
    "another port of this site": {"sec-fetch-site": "same-site", "origin": "http://127.0.0.1:8100"},
}
FORMS = ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; a=b", "")
APP = Starlette(routes=[Route("/", lambda request: PlainTextResponse("here"), methods=["GET", "POST"])])


def ask(headers: dict[str, str] | dict[str, bytes], host: str = "127.0.0.1", **body: bytes) -> tuple[int, str]:
    answer = TestClient(Guard(APP, host=host), base_url="http://127.0.0.1:8100").post("/", headers=headers, **body)
    return answer.status_code, answer.json()["error"]["code"] if answer.status_code != 200 else ""


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8100", "localhost", "LOCALHOST:1", "a.localhost", "[::1]:8100", "10.0.0.7"]
)
def test_names_that_are_this_machines(host: str) -> None:
    """Loopback names, and addresses, which no page can give another meaning."""
    assert ask({"host": host}) == (200, "")


@pytest.mark.parametrize("host", FOREIGN_NAMES)
def test_names_that_lead_here_and_are_others(host: str) -> None:
    """DNS rebinding. Where other machines are let in, servers have names of their own, and a key."""
    assert ask({"host": host}) == (421, "foreign_host")
    assert ask({"host": host}, host="0.0.0.0") == (200, "")


@pytest.mark.parametrize("host", NO_NAMES)
def test_what_is_no_name(host: str) -> None:
    """Nothing is made of it."""
    assert ask({"host": host.encode("latin-1")}) == (400, "invalid_host")


@pytest.mark.parametrize("headers", FOREIGN_PAGES.values(), ids=FOREIGN_PAGES)
def test_pages_of_others(headers: dict[str, str]) -> None:
    """Whatever they send, with a key or without."""
    for host in ("127.0.0.1", "0.0.0.0"):
        assert ask(headers, host) == (403, "foreign_origin")


@pytest.mark.parametrize("origin", ["http://127.0.0.1:8100", "vscode-webview://abc", "tauri://localhost"])
def test_applications_are_no_pages(origin: str) -> None:
    """And what the server itself has served may ask it."""
    assert ask({"origin": origin}) == (200, "")


@pytest.mark.parametrize("kind", FORMS)
def test_forms(kind: str) -> None:
    """What a page can send without being asked first."""
    assert ask({"content-type": kind}, content=b"{}") == (415, "unsupported_media_type")


@pytest.mark.parametrize("header", [{"user-agent": "curl/8.5.0"}, {"authorization": "Bearer x"}, {"x-api-key": "x"}])
def test_what_no_page_sends_unasked(header: dict[str, str]) -> None:
    """JSON by another name, as `curl -d` calls it, with a header that a browser would ask the server about first."""
    assert ask({"content-type": "application/x-www-form-urlencoded", **header}, content=b"{}") == (200, "")


@pytest.mark.parametrize("kind", ["application/json", "Application/JSON; charset=utf-8", "application/vnd.api+json"])
def test_json(kind: str) -> None:
    """By any of its names; a body of nothing has no type."""
    assert ask({"content-type": kind}, content=b"{}") == (200, "")
    assert ask({"content-type": "text/plain"}) == (200, "")


def test_headers_are_bounded() -> None:
    """In number and in bytes."""
    for headers in ({f"x-{number}": "1" for number in range(300)}, {"x-long": "a" * 70_000}):
        assert ask(headers) == (431, "headers_too_large")


def test_every_server_has_it() -> None:
    """Over a socket."""
    with HttpServer(APP, name="server") as server:
        assert httpx.get(server.base_url, headers={"host": "evil.example"}).status_code == 421
        assert httpx.get(server.base_url, headers={"origin": "http://evil.example"}).status_code == 403
        assert httpx.post(server.base_url, content=b"{}", headers={"content-type": "text/plain"}).status_code == 415
        assert httpx.get(server.base_url, headers={"x": "a" * 400_000}).status_code == 431
