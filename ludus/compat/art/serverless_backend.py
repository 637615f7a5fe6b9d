"""`ServerlessBackend`: the name under which ART's scripts train with W&B's service; here it trains in this process.

Knows: which arguments only the service reads.  Knows not: models, training; those are `LocalBackend`'s.
"""

from __future__ import annotations

import logging

from ludus.compat.art.local_backend import LocalBackend
from ludus.compat.members import with_members

logger = logging.getLogger(__name__)


@with_members("art", "serverless.backend.ServerlessBackend")
class ServerlessBackend(LocalBackend):
    """A `LocalBackend` with ART's defaults."""

    def __init__(self, *, api_key: str | None = None, base_url: str | None = None) -> None:
        """api_key, base_url: not read."""
        del api_key, base_url
        super().__init__()
        logger.warning(
            "ServerlessBackend: W&B's service is not called; models are served and trained on this machine, as by "
            "LocalBackend(), in %r. For another machine use art.ServerBackend",
            str(self.path),
        )

    def __repr__(self) -> str:
        return f"ServerlessBackend({str(self.path)!r}, models={len(self._models)})"
