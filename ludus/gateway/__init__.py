"""The model's voice: agents talk to it over HTTP, in the words of the wire protocol that their SDK speaks.

Knows: wire protocols, keys, sockets, clients.  Knows not: tokens, templates, engines, rewards.
"""

from __future__ import annotations

from ludus.gateway.app import GatewayOptions, build_app
from ludus.gateway.server import GatewayServer
from ludus.gateway.traffic import GatewayStats
from ludus.gateway.transport import async_client
from ludus.gateway.watchdog import Blockage, LoopWatchdog

__all__ = [
    "Blockage",
    "GatewayOptions",
    "GatewayServer",
    "GatewayStats",
    "LoopWatchdog",
    "async_client",
    "build_app",
]
