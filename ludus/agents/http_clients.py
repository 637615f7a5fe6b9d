"""HTTP clients for the tools and rewards of all episodes on one event loop: made once, closed when the agents end.

Knows: httpx, aiohttp where it is installed.  Knows not: the model, episodes.
"""

from __future__ import annotations

import importlib
from typing import Any

from ludus.errors import UserError

TIMEOUT_S = 3600.0  # a tool may compute for long; the episode's own deadline ends it sooner


class SharedClients:
    """One client of each kind, made on first use, and again if an agent closed it."""

    def __init__(self) -> None:
        self._httpx: Any = None
        """None: not used yet; `_aiohttp` likewise."""
        self._aiohttp: Any = None

    async def httpx_client(self) -> Any:
        """An `httpx.AsyncClient`."""
        if self._httpx is None or self._httpx.is_closed:
            self._httpx = importlib.import_module("httpx").AsyncClient(timeout=TIMEOUT_S)
        return self._httpx

    async def aiohttp_session(self) -> Any:
        """An `aiohttp.ClientSession`. Raises UserError if aiohttp is not installed."""
        if self._aiohttp is None or self._aiohttp.closed:
            try:
                aiohttp = importlib.import_module("aiohttp")
            except ModuleNotFoundError:
                raise UserError(
                    "get_aiohttp_session() needs aiohttp: pip install aiohttp; or use get_httpx_client()"
                ) from None
            self._aiohttp = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S))
        return self._aiohttp

    async def aclose(self) -> None:
        """Close the clients that were made."""
        if self._httpx is not None:
            await self._httpx.aclose()
        if self._aiohttp is not None:
            await self._aiohttp.close()
