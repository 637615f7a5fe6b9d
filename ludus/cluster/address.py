"""The address and the key of a server.

Knows: plain values.  Knows not: what is served.
"""

from __future__ import annotations

from dataclasses import dataclass

from ludus.http.tls import Tls


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Address, key and certificate of a server. `ludus.http.keys.check_key` checks whether the key is safe for it."""

    host: str
    port: int
    """0: any free port."""
    key: str | None
    """None: no key was given."""
    tls: Tls | None = None
    """None: plain HTTP."""
