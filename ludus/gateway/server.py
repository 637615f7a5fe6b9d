"""The gateway as a server: its application on a thread of its own.

Knows: keys in URLs, traffic, garbage collection.  Knows not: routes, sockets, what sessions do.
Because nothing else runs on the server's loop, an agent that blocks its own loop with a blocking client is still
answered.
"""

from __future__ import annotations

import gc

from ludus.episodes.keys import SessionKeys
from ludus.gateway.app import DEFAULT_OPTIONS, GatewayOptions, build_app
from ludus.gateway.traffic import GatewayStats, Traffic
from ludus.http.server import HttpServer
from ludus.http.tls import Tls

NUM_NEW_OBJECTS = 10_000  # some hundred requests; Python's own 700 are two


class GatewayServer(HttpServer):
    """Serves the sessions of `keys` from `start` to `stop`. Safe to use from any thread."""

    def __init__(self, keys: SessionKeys, options: GatewayOptions = DEFAULT_OPTIONS, *, tls: Tls | None = None) -> None:
        """tls: None: plain HTTP."""
        self.keys = keys
        self._traffic = Traffic()
        beside = None if options.episodes is None else options.episodes.sweep
        # Every session has a key. Where unknown keys open one, an admin has let them.
        is_guarded = options.open_mode is None or options.admin_key is not None
        app = build_app(keys, options, self._traffic)
        super().__init__(app, name="gateway", beside=beside, is_guarded=is_guarded, tls=tls)

    def __repr__(self) -> str:
        return f"GatewayServer({super().__repr__()}, num_sessions={len(self.keys)})"

    def url_for(self, secret: str) -> str:
        """The `base_url` to give to an SDK for the session of `secret`."""
        return f"{self.base_url}/s/{secret}/v1"

    def stats(self) -> GatewayStats:
        """Counts and CPU seconds; `cpu_s` counts since the last start."""
        return self._traffic.stats()


def calm_garbage_collection() -> None:
    """Makes garbage collection rarer and shorter; call it once, after loading and before serving.

    Existing objects are exempted: with torch and transformers loaded each collection would take a quarter of a second
    while requests wait. Most of what a request leaves behind is freed by reference counting before the next collection.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(NUM_NEW_OBJECTS, *gc.get_threshold()[1:])
