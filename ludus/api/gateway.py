"""`ludus.open_gateway`: the configured model behind a gateway, for agents in the same program."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ludus.api.cards.start import planned
from ludus.api.local import open_local
from ludus.config import Config
from ludus.gateway.in_process import InProcessGateway


@asynccontextmanager
async def open_gateway(config: Config | None = None) -> AsyncIterator[InProcessGateway]:
    """The model of `config` behind a gateway in this program; both are closed when the block ends."""
    async with open_local(planned(config or Config(), trains=False)) as local:
        with InProcessGateway(local.recorder) as gateway:
            yield gateway
