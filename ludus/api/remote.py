"""Opens a recorder in front of engines that run elsewhere: only the tokenizer is loaded here, no weights.

Knows: how text and engine are put together.  Knows not: weights, torch, trainers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from ludus.api.servers import server_of
from ludus.config import Config
from ludus.engines.routed.engine import route
from ludus.episodes.names import DEFAULT_MODEL, ModelNames
from ludus.episodes.recorder import Recorder
from ludus.models.resolve import resolve_tokenizer
from ludus.text.chat import ChatText


@asynccontextmanager
async def open_remote(config: Config) -> AsyncIterator[Recorder]:
    """A recorder whose answers are sampled by the servers at `engine.urls`, until the block ends.

    `model.path` is the folder or the hub id of the model that they serve; only its tokenizer and template are read.
    Raises UserError or BackendError if one of them is no such server, or serves another model.
    """
    (kind, settings), model = server_of(config), config.model
    folder = resolve_tokenizer(model.path)
    text = ChatText.load(folder, **model.chat)
    async with AsyncExitStack() as stack:
        engines = []
        for url in settings.urls:
            engine = await asyncio.to_thread(kind.connect, url, text.tokenizer, api_key=settings.api_key)
            stack.push_async_callback(engine.close)
            engines.append(engine)
        names = ModelNames(DEFAULT_MODEL, (model.path,), model.served_names)
        yield Recorder(route(engines, text.tokenizer), text, names=names)
