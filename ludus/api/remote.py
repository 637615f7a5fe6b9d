"""A recorder in front of an engine that runs elsewhere: the tokenizer is here, the weights are not.

Knows: how text and engine are put together.  Knows not: weights, torch, trainers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from ludus.engines.routed.engine import route
from ludus.engines.vllm.engine import VllmEngine
from ludus.episodes.recorder import Recorder
from ludus.models.resolve import resolve_tokenizer
from ludus.models.settings import ModelSettings
from ludus.text.chat import ChatText


@asynccontextmanager
async def open_vllm(
    settings: ModelSettings, urls: Sequence[str], *, api_key: str | None = None
) -> AsyncIterator[Recorder]:
    """The recorder of what the vLLM servers at `urls` sample, until the block ends; several are behind a router.

    settings: `path` is the folder or the hub id of the model that is served there; only its text files are read.
    Raises UserError or BackendError if one of them is no such server, or serves another model.
    """
    folder = resolve_tokenizer(settings.path)
    text = ChatText.load(folder, chat_template=settings.chat_template, tool_parser=settings.tool_parser)
    async with AsyncExitStack() as stack:
        engines = []
        for url in urls:
            engine = await asyncio.to_thread(VllmEngine.connect, url, text.tokenizer, api_key=api_key)
            stack.push_async_callback(engine.close)
            engines.append(engine)
        yield Recorder(route(engines, text.tokenizer), text)
