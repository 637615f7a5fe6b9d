"""Who may look: whoever has the key of this watcher's link, in a header or in the cookie that the link leaves.

Knows: keys, cookies.  Knows not: routes.
Invariant: only the digest of the key is kept; a page gets it as a cookie that scripts and other sites cannot use.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from ludus.http.keys import digest, is_key, keys_of

_HEADERS = {
    # nothing comes from elsewhere, nothing is run that stands in a page, nobody frames it
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}


class Access:
    """Of one watcher."""

    def __init__(self, key: str) -> None:
        self._digest = digest(key)

    def is_allowed(self, request: Request) -> bool:
        given = [*keys_of(request.headers), request.cookies.get(_cookie_name(request), "")]
        return any(is_key(each, self._digest) for each in given)

    def remember(self, request: Request, response: Response) -> None:
        """A visitor who comes with the key in the address need not do so again."""
        key = request.query_params.get("key", "")
        if is_key(key, self._digest):
            response.set_cookie(_cookie_name(request), key, httponly=True, samesite="strict", path="/")


def secured(response: Response) -> Response:
    for name, value in _HEADERS.items():
        response.headers[name] = value
    return response


def _cookie_name(request: Request) -> str:
    """Cookies know no ports, and several watchers may run on one machine."""
    return f"ludus-watch-{request.url.port or 80}"
