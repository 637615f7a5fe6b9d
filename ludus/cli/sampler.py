"""`ludus sampler`: answers with the models of a run, for the live page."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from typer import Argument

from ludus.api.answers import answers_app
from ludus.api.elsewhere import served_models
from ludus.api.sampler import RunSampler
from ludus.cli.console import say_json
from ludus.cli.options import ServedKey, ServedModels
from ludus.cli.signals import until_signalled
from ludus.errors import LudusError
from ludus.http.keys import new_key
from ludus.http.server import HttpServer
from ludus.processes.blocking import run_blocking

_NICE = 5  # added to that of the page's process: a run that trains on this machine has priority


def sampler(
    run: Annotated[Path, Argument(metavar="RUN", help="The run's folder, such as runs/guess.")],
    served: ServedModels = None,
    served_key: ServedKey = None,
) -> None:
    """Answer with the models of a run; `ludus watch` starts this by itself.

    Where it listens, and the key that it wants, are its first line.
    """
    os.nice(_NICE)
    run_blocking(_serve(run, served or [], served_key))


async def _serve(run: Path, served: Sequence[str], served_key: str | None) -> None:
    try:
        asked, key = RunSampler(run, served_models(served, key_variable=served_key)), new_key()
    except LudusError as error:
        say_json({"detail": str(error)})  # for the page
        raise
    server = HttpServer(answers_app(asked, key), name="sampler", beside=asked.sweep)
    url = server.start("127.0.0.1", 0)
    try:
        say_json({"url": url, "key": key})
        await until_signalled()
    finally:
        closing = asyncio.run_coroutine_threadsafe(asked.close(), server.loop)
        await asyncio.wrap_future(closing)
        server.stop()
