"""An HTTP transport that sends a client's requests to the model's current endpoint, and reports answers to listeners.

Knows: the transport interface shared by httpx and httpx2, the endpoint of a model.  Knows not: the content of requests.
Invariants: the endpoint, weights and rollout of a request are determined when it is sent; listeners get exactly what
the client gets.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from ludus.compat.art.assemble import read_answer
from ludus.compat.art.backends import InferenceEndpoint
from ludus.compat.art.exchanges import exchange_listeners

PLACEHOLDER = "http://model.ludus.invalid/v1"
"""Base URL of a client whose model has no endpoint yet."""

Endpoint = Callable[[], Awaitable[InferenceEndpoint | None]]
"""Returns the model's current endpoint. None: the client's own base URL."""


class ModelTransport:
    """A transport for the AsyncClient of `http` (httpx or httpx2)."""

    def __init__(self, http: ModuleType, endpoint: Endpoint) -> None:
        self._http = http
        self._endpoint = endpoint
        # A connection is bound to the event loop on which it was made, and a program may have several loops.
        self._inner: WeakKeyDictionary[asyncio.AbstractEventLoop, Any] = WeakKeyDictionary()
        # Each module requires streams of its own class.
        self._stream_class = type("KeptStream", (_Kept, http.AsyncByteStream), {})

    async def handle_async_request(self, request: Any) -> Any:
        endpoint = await self._endpoint()
        if endpoint is not None:
            request.url = self._moved(request.url, endpoint.base_url)
            request.headers["host"] = request.url.netloc.decode("ascii")
            request.headers["authorization"] = f"Bearer {endpoint.key()}"
        listeners = exchange_listeners() if request.url.path.endswith("/chat/completions") else ()
        if listeners:
            request.headers["accept-encoding"] = "identity"  # listeners parse the raw bytes
        response = await self._transport(endpoint).handle_async_request(request)
        if listeners and response.status_code == 200:
            asked, content_type = json.loads(await request.aread()), response.headers.get("content-type", "")

            def pass_on(body: bytes) -> None:
                answer = read_answer(body, content_type)
                if answer is not None:
                    for listener in listeners:
                        listener(asked, answer)

            response.stream = self._stream_class(response.stream, pass_on)
        return response

    async def aclose(self) -> None:
        """Does nothing, as other clients of the model use the same connections."""

    async def __aenter__(self) -> ModelTransport:
        return self

    async def __aexit__(self, *error: object) -> None: ...

    def _transport(self, endpoint: InferenceEndpoint | None) -> Any:
        loop = asyncio.get_running_loop()
        if loop not in self._inner:
            own = None if endpoint is None else endpoint.transport
            self._inner[loop] = self._http.AsyncHTTPTransport() if own is None else own(self._http)
        return self._inner[loop]

    def _moved(self, url: Any, base_url: str) -> Any:
        """The same path below `base_url`."""
        text = str(url)
        for known in (PLACEHOLDER, base_url):
            if text.startswith(known):
                return self._http.URL(base_url + text[len(known) :])
        # A client that was made before the server moved, for instance by a restart, has the old address.
        path = text.partition("/v1/")[2]
        return self._http.URL(f"{base_url}/{path}")


class _Kept:
    """The body of a response, collected while it is read, and reported when it was read to its end."""

    def __init__(self, stream: Any, pass_on: Callable[[bytes], None]) -> None:
        self._stream = stream
        self._pass_on = pass_on

    async def __aiter__(self) -> AsyncIterator[bytes]:
        parts: list[bytes] = []
        async for part in self._stream:
            parts.append(part)
            if part.rstrip().endswith(b"[DONE]"):  # clients stop reading events here
                self._pass_on(b"".join(parts))
                parts.clear()
            yield part
        self._pass_on(b"".join(parts))

    async def aclose(self) -> None:
        await self._stream.aclose()
