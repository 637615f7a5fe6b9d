"""The configured model for agents that live in the same program as it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ludus.api.cards.start import planned
from ludus.api.local import open_local
from ludus.config import Config
from ludus.gateway.in_process import InProcessGateway


@asynccontextmanager
async def open_gateway(config: Config | None = None) -> AsyncIterator[InProcessGateway]:
    """The model of `config`, loaded, behind a gateway of this program; both end with the block."""
    async with open_local(planned(config or Config(), trains=False)) as local:
        with InProcessGateway(local.recorder) as gateway:
            yield gateway
