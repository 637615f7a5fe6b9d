"""Where a server of ours listens, and who may use it.

Knows: plain values.  Knows not: what is served.
"""

from __future__ import annotations

from dataclasses import dataclass

from ludus.http.tls import Tls


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """`ludus.http.keys.check_key` says whether it is a safe one."""

    host: str
    port: int
    """0: any free one."""
    key: str | None
    """None: none was given."""
    tls: Tls | None = None
    """None: plain HTTP."""
