"""Groups of HTTP status codes.

Knows: HTTP.  Knows not: clients, servers.
"""

from __future__ import annotations

PASSING = (408, 425, 429)
"""4xx codes that may succeed when retried: the request was too slow, too early, or one of too many."""
