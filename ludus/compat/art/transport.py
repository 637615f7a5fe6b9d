"""The way of a client's requests to a model, wherever it is by then, with its answers passed to listeners.

Knows: the transport interface that httpx and httpx2 share, the endpoint of a model.  Knows not: what a request asks.
Invariants: where a request goes is decided when it is sent: with the weights and the rollout of that moment; what is
passed on is what the client was given.
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
"""The base URL of a client whose model has none yet."""

Endpoint = Callable[[], Awaitable[InferenceEndpoint | None]]
"""Where the model is now. None: where at the client's own base URL."""


class ModelTransport:
    """A transport for the AsyncClient of `http` (httpx or httpx2)."""

    def __init__(self, http: ModuleType, endpoint: Endpoint) -> None:
        self._http = http
        self._endpoint = endpoint
        # A connection belongs to the event loop that it was made on, and a program may have several.
        self._inner: WeakKeyDictionary[asyncio.AbstractEventLoop, Any] = WeakKeyDictionary()
        # The modules check their streams by class, and the class is the module's own.
        self._stream_class = type("KeptStream", (_Kept, http.AsyncByteStream), {})

    async def handle_async_request(self, request: Any) -> Any:
        endpoint = await self._endpoint()
        if endpoint is not None:
            request.url = self._moved(request.url, endpoint.base_url)
            request.headers["host"] = request.url.netloc.decode("ascii")
            request.headers["authorization"] = f"Bearer {endpoint.key()}"
        listeners = exchange_listeners() if request.url.path.endswith("/chat/completions") else ()
        if listeners:
            request.headers["accept-encoding"] = "identity"  # what is passed on is read as it comes
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
        """Nothing: other clients of the model use the same connections."""

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
        # A client made before the model moved, as after its server was started anew, has the old address.
        path = text.partition("/v1/")[2]
        return self._http.URL(f"{base_url}/{path}")


class _Kept:
    """The body of a response, kept while it is read and passed on once it was read to its end."""

    def __init__(self, stream: Any, pass_on: Callable[[bytes], None]) -> None:
        self._stream = stream
        self._pass_on = pass_on

    async def __aiter__(self) -> AsyncIterator[bytes]:
        parts: list[bytes] = []
        async for part in self._stream:
            parts.append(part)
            if part.rstrip().endswith(b"[DONE]"):  # iterating over events stops here
                self._pass_on(b"".join(parts))
                parts.clear()
            yield part
        self._pass_on(b"".join(parts))

    async def aclose(self) -> None:
        await self._stream.aclose()
