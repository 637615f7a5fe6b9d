"""A server over TLS, and what may listen where other machines are."""

from __future__ import annotations

import socket

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from ludus.errors import UserError
from ludus.http.server import HttpServer
from ludus.http.tls import client_context
from tests.http.conftest import Authority

APP = Starlette(routes=[Route("/", lambda request: PlainTextResponse("here"))])


def test_a_client_with_the_authority_is_served(authority: Authority) -> None:
    """Over TLS 1.2 or newer, at an https:// URL; one that does not trust the authority says nothing to the server."""
    with HttpServer(APP, name="server", tls=authority.tls) as server:
        assert server.base_url.startswith("https://127.0.0.1:")
        assert httpx.get(server.base_url, verify=client_context(authority.ca_file)).text == "here"
        with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
            httpx.get(server.base_url, verify=client_context(None))
        with pytest.raises(httpx.RemoteProtocolError):
            httpx.get(server.base_url.replace("https", "http"))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org", ""])
def test_what_wants_no_key_is_served_to_this_machine_alone(host: str) -> None:
    """Whatever else would let other machines in; nothing listens, and the server may be started elsewhere."""
    server = HttpServer(APP, name="server")
    with pytest.raises(UserError, match=r"wants no key, and on .* other machines could use it; .* 127\.0\.0\.1"):
        server.start(host)
    server.start("localhost")
    server.stop()


def test_what_wants_a_key_may_be_served_to_others() -> None:
    """On every address of this machine, where somebody asked for it."""
    server = HttpServer(APP, name="server", is_guarded=True)
    url = server.start("0.0.0.0")
    with socket.create_connection(("127.0.0.1", httpx.URL(url).port or 0)):
        server.stop()
