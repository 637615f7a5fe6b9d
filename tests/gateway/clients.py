"""Clients of a gateway that need no socket."""

from __future__ import annotations

import importlib
from typing import Any

from ludus.gateway.server import GatewayServer
from ludus.gateway.transport import TIMEOUT_S, ClientKind, InProcessTransport, sdk_http_module


def async_client(server: GatewayServer, kind: ClientKind = "auto") -> Any:
    """An AsyncClient of httpx or httpx2 that owns its transport. kind: as of `ClientFactory`."""
    http = importlib.import_module(sdk_http_module() if kind == "auto" else kind)
    return http.AsyncClient(transport=InProcessTransport(server, http), timeout=TIMEOUT_S)
