"""The gateway as a server: its application on a thread of its own.

Knows: keys in URLs, traffic, garbage.  Knows not: routes, sockets, sessions beyond handing them on.
Because nothing else runs on its loop, an agent may block its own loop with a blocking client and is still answered.
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
        """What was asked and what it took; `cpu_s` since the last start."""
        return self._traffic.stats()


def calm_garbage_collection() -> None:
    """Makes Python search for garbage less often and in less; call it once, when all is loaded, before serving.

    What there is now is not searched again: with torch and transformers loaded each search takes a quarter of a
    second, and requests wait. What a request leaves behind is mostly gone before the search that begins after so many
    new objects.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(NUM_NEW_OBJECTS, *gc.get_threshold()[1:])
