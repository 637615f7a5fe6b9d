"""The SDK clients that run the cases, and plain HTTP for requests that an SDK cannot send.

Knows: how to make each SDK's client, its errors.  Knows not: cases, servers.
"""

from __future__ import annotations

import importlib
from typing import Any

import httpx

from ludus.checks.sdk import sdk
from ludus.gateway.transport import sdk_http_module

MAX_CONNECTIONS = 64  # several times the number of concurrent cases, as some use more than one


class Clients:
    """Makes SDK clients that share their connections, from `async with` to its end."""

    def __init__(self, timeout_s: float) -> None:
        self._openai = sdk("openai")
        self._anthropic = sdk("anthropic")
        http: Any = importlib.import_module(sdk_http_module())
        limits = {"max_connections": MAX_CONNECTIONS, "max_keepalive_connections": MAX_CONNECTIONS}
        self._shared = http.AsyncClient(timeout=timeout_s, limits=http.Limits(**limits))
        self.raw = httpx.AsyncClient(timeout=timeout_s, limits=httpx.Limits(**limits))
        self.status_errors: tuple[type[Exception], ...] = (self._openai.APIStatusError, self._anthropic.APIStatusError)
        """Exceptions of the SDKs for error responses."""

    def openai(self, root: str, api_key: str | None, max_retries: int = 0) -> Any:
        http = {"http_client": self._shared, "max_retries": max_retries}
        return self._openai.AsyncOpenAI(base_url=f"{root}/v1", api_key=api_key, **http)

    def anthropic(self, root: str, api_key: str | None, max_retries: int = 0) -> Any:
        http = {"http_client": self._shared, "max_retries": max_retries}
        return self._anthropic.AsyncAnthropic(base_url=root, api_key=api_key, **http)

    async def __aenter__(self) -> Clients:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._shared.aclose()
        await self.raw.aclose()
