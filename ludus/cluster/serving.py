"""Serves one engine of this process over HTTP: loads the model, starts the engine, opens the socket.

Knows: how these are put together.  Knows not: clients, training.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ludus.api.cards.start import planned
from ludus.api.local import INSTALL_HINT
from ludus.cluster.address import ListenAddress
from ludus.config import Config
from ludus.engines.lease import ComputeLease
from ludus.engines.local.settings import LocalSettings
from ludus.engines.serving.app import EngineApi
from ludus.engines.serving.command import KEY_VARIABLE
from ludus.engines.serving.key_files import kept_key
from ludus.engines.serving.weight_receiver import WeightReceiver
from ludus.errors import UserError
from ludus.http.keys import check_key, digest, new_key
from ludus.http.server import HttpServer
from ludus.processes.environment import forget
from ludus.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ServedEngine:
    """A running engine server."""

    url: str
    key_file: Path | None
    """The file with the generated key. None: a key was given."""
    wait_ended: Callable[[], Coroutine[Any, Any, None]]
    """Waits, and raises BackendError when the engine has failed."""


def check_address(address: ListenAddress) -> None:
    """Raises UserError if strangers could use the engine, or guess its key."""
    check_key("an engine", address.host, address.key, variable=KEY_VARIABLE)


@asynccontextmanager
async def serving_engine(
    config: Config, address: ListenAddress, *, scratch: Path | None = None
) -> AsyncIterator[ServedEngine]:
    """Serve an engine of this process until the block ends.

    address: if it has no key, one is generated, and stored where this user's programs on this machine find it.
    scratch: folder for weights that are being received. None: the system's folder for temporary files.
    Raises UserError if the model cannot be loaded, or the port is taken.
    """
    check_address(address)
    forget(KEY_VARIABLE)  # agents on this machine can read the environments of the user's processes
    config = planned(config, trains=False)
    if not isinstance(config.engine, LocalSettings) or config.engine.replicas > 1:
        raise UserError(
            f"engine.kind={config.engine.kind!r} and engine.replicas={config.engine.replicas}: this serves one engine "
            "of this process; start it again on another port for one more"
        )
    try:
        from ludus.engines.local.engine import LocalEngine
        from ludus.engines.serving.files import FileWeights
        from ludus.models.load import load_model
    except ModuleNotFoundError as error:
        raise UserError(f"an engine needs {error.name!r}: {INSTALL_HINT}") from error
    model = load_model(config.model, seed=config.seed)
    tokenizer = Tokenizer.load(model.folder)
    engine = LocalEngine(model, tokenizer, config.engine, lease=ComputeLease(), seed=config.seed)
    weight_receiver = WeightReceiver(engine, lambda files: FileWeights(model, files), scratch=scratch)
    key = address.key or new_key()
    api = EngineApi(engine, tokenizer, weight_receiver, model=config.model.path, key_digest=digest(key))
    http = HttpServer(api.build(), name="engine", is_guarded=True, tls=address.tls)
    try:
        url = await asyncio.to_thread(http.start, address.host, address.port)
        with kept_key(url, key) if address.key is None else nullcontext() as key_file:
            yield ServedEngine(url, key_file, engine.wait_ended)
    finally:
        await asyncio.to_thread(http.stop)
        await engine.close()
