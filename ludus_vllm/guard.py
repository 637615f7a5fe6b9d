"""A key before every path of a vLLM server, those too that `--api-key` leaves open: weights, pauses, calls to workers.

Knows: HTTP requests, the key in the environment.  Knows not: vLLM, which loads it by `--middleware`.
"""

from __future__ import annotations

import os
import secrets
from typing import Any

KEY_VARIABLE = "LUDUS_VLLM_KEY"
OPEN_PATHS = ("/health",)


class RequireKey:
    """Answers 401 to whoever does not bring the key. Without a key in the environment nobody is served."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._wanted = f"Bearer {os.environ[KEY_VARIABLE]}".encode()

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan" or scope["path"] in OPEN_PATHS or self._is_let_in(scope):
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = [(b"content-type", b"application/json"), (b"www-authenticate", b"Bearer")]
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        await send({"type": "http.response.body", "body": b'{"error": "Unauthorized"}'})

    def _is_let_in(self, scope: dict[str, Any]) -> bool:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        return len(given) == 1 and secrets.compare_digest(given[0], self._wanted)
