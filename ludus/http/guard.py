"""Checks a request before the application sees it: its size, that it is for this server, and not from a web page.

Knows: ASGI, headers.  Knows not: routes, keys.
Any web page can make a browser send requests to servers on this machine: through a domain name that its owner points
here (DNS rebinding, seen in Host), or as a form (seen in Origin and the content type). Not every server needs a key.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Mapping
from urllib.parse import urlsplit

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from ludus.http.connection import error_body
from ludus.http.keys import is_loopback

MAX_HEADERS = 256  # SDKs and proxies send some thirty
MAX_HEADER_BYTES = 64 * 2**10  # what servers commonly allow
LOCAL_NAMES = ("localhost", "host.docker.internal", "gateway.docker.internal", "host.containers.internal")
"""Names that no stranger can point to this machine."""
_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[^\s:/?#@\[\]\\]+)(?::[0-9]{1,5})?")
_JSON = re.compile(r"application/(?:[a-z0-9.+-]+\+)?json\s*(?:;|$)", re.IGNORECASE)
_ASKED_FOR = ("authorization", "x-api-key")
"""Before a page may send one of these headers, or another user agent than its own, the browser asks the server (CORS).
A request with one is therefore no page's form, even if it is labelled as one, as `curl -d` labels JSON."""

Fault = tuple[int, str, str]
"""Status, message, code."""


class Guard:
    """Middleware that refuses requests which no legitimate client sends."""

    def __init__(self, app: ASGIApp, *, host: str, takes_any_body: bool = False) -> None:
        """host: the address the server listens on.  takes_any_body: also accept bodies that are not JSON."""
        self._app = app
        self._is_local = is_loopback(host)
        self._names = frozenset({*LOCAL_NAMES, host.lower(), socket.gethostname().lower()})
        self._takes_any_body = takes_any_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        fault = self._fault(scope) if scope["type"] == "http" else None
        if fault is None:
            await self._app(scope, receive, send)
            return
        status, message, code = fault
        await JSONResponse(error_body(message, code), status, headers={"connection": "close"})(scope, receive, send)

    def _fault(self, scope: Scope) -> Fault | None:
        headers = scope["headers"]
        if len(headers) > MAX_HEADERS or sum([len(name) + len(value) for name, value in headers]) > MAX_HEADER_BYTES:
            message = f"The request has more than {MAX_HEADERS} headers or {MAX_HEADER_BYTES} bytes of them."
            return 431, message, "headers_too_large"
        by_name = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
        return (
            self._host_fault(by_name.get("host"), [name for name, _ in headers].count(b"host"))
            or self._page_fault(by_name)
            or self._body_fault(scope["method"], by_name)
        )

    def _host_fault(self, host: str | None, count: int) -> Fault | None:
        if host is None:  # as in HTTP/1.0, which no browser speaks
            return None
        found = _HOST.fullmatch(host)
        if found is None or count > 1:
            return 400, f"The header Host says {host[:80]!r}, which is no name of a server.", "invalid_host"
        name = found["name"].lower().rstrip(".")
        if not self._is_local or name in self._names or name.endswith(".localhost") or _is_address(name):
            return None
        message = (
            f"This server listens to its own machine alone, and {name[:80]!r} is none of its names: ask for it as "
            "127.0.0.1 or localhost, or have your proxy do so"
        )
        return 421, message, "foreign_host"

    def _page_fault(self, headers: Mapping[str, str]) -> Fault | None:
        origin = headers.get("origin")
        is_foreign = headers.get("sec-fetch-site") in ("cross-site", "same-site")
        if origin is not None and not is_foreign:
            try:
                parts = urlsplit(origin)
                is_page = parts.scheme in ("", "http", "https")  # else an application or an extension
                is_foreign = is_page and parts.netloc.lower() != headers.get("host", "").lower()
            except ValueError:
                is_foreign = True
        if not is_foreign:
            return None
        return 403, f"Pages of other sites may not ask this server (Origin: {(origin or '')[:80]!r}).", "foreign_origin"

    def _body_fault(self, method: str, headers: Mapping[str, str]) -> Fault | None:
        has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
        kind = headers.get("content-type")  # None: a page that leaves it out has told its origin
        if self._takes_any_body or method != "POST" or not has_body or kind is None or _JSON.match(kind):
            return None
        if any(name in headers for name in _ASKED_FOR) or headers.get("user-agent", "").startswith("curl/"):
            return None
        message = f"The body's type is {kind[:80]!r}; send JSON, with the header content-type: application/json"
        return 415, message, "unsupported_media_type"


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
