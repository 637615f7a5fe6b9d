"""What an answer's status says of the request and of the server, beside whether it succeeded.

Knows: HTTP.  Knows not: clients, servers.
"""

from __future__ import annotations

PASSING = (408, 425, 429)
"""Nothing is wrong with the request: it was slow on its way, came too early, or is one of too many."""
