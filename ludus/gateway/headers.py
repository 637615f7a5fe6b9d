"""What the headers of a request may weigh.

Knows: bytes, ASGI.  Knows not: what any header says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from ludus.errors import AgentError
from ludus.gateway.dialects.base import Dialect, error_reply
from ludus.gateway.exchange import send_error

MAX_HEADERS = 256  # SDKs and proxies send some thirty
MAX_HEADER_BYTES = 64 * 2**10  # what servers commonly allow
HEADERS_TOO_LARGE = 431


class HeaderBounds:
    """Middleware that refuses requests with too many or too large headers with 431."""

    def __init__(self, app: ASGIApp, dialect_of: Callable[[Request], Dialect]) -> None:
        """dialect_of: in whose format an error reply is."""
        self._app = app
        self._dialect_of = dialect_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _is_too_much(scope["headers"]):
            error = AgentError(
                f"The request has more than {MAX_HEADERS} headers or {MAX_HEADER_BYTES} bytes of them.",
                status=HEADERS_TOO_LARGE,
                code="headers_too_large",
            )
            await send_error(send, self._dialect_of(Request(scope)), error_reply(error))
            return
        await self._app(scope, receive, send)


def _is_too_much(headers: Sequence[tuple[bytes, bytes]]) -> bool:
    return len(headers) > MAX_HEADERS or sum([len(name) + len(value) for name, value in headers]) > MAX_HEADER_BYTES
