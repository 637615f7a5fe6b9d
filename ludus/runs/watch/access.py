"""Authentication of the live page: the key in the watcher's link, sent in a header or in the cookie that the link sets.

Knows: keys, cookies.  Knows not: routes.
Invariant: only the digest of the key is kept; the cookie cannot be used by scripts or by other sites.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from ludus.http.keys import digest, is_key, keys_of

_HEADERS = {
    # no resources from other origins, no inline scripts, no embedding in frames
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}


class Access:
    """The access check of one watcher."""

    def __init__(self, key: str) -> None:
        self._digest = digest(key)

    def is_allowed(self, request: Request) -> bool:
        given = [*keys_of(request.headers), request.cookies.get(_cookie_name(request), "")]
        return any(is_key(each, self._digest) for each in given)

    def remember(self, request: Request, response: Response) -> None:
        """Set the cookie if the request has the key in its address, so that later requests need not."""
        key = request.query_params.get("key", "")
        if is_key(key, self._digest):
            response.set_cookie(_cookie_name(request), key, httponly=True, samesite="strict", path="/")


def secured(response: Response) -> Response:
    for name, value in _HEADERS.items():
        response.headers[name] = value
    return response


def _cookie_name(request: Request) -> str:
    """The cookie's name, with the port: cookies are not separated by port, and a machine may have several watchers."""
    return f"ludus-watch-{request.url.port or 80}"
