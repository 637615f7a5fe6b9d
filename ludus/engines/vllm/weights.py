"""How new weights reach a vLLM server: files that it maps, or the files of an adapter.

Knows: vLLM's interface for weight transfers (0.32, served with VLLM_SERVER_DEV_MODE=1), names of versions.
Knows not: calls, tokens, when weights are published.
Invariant: the weights that sample change only between `start_weight_update` and `finish_weight_update`, while vLLM is
paused; with them changes the salt, so that no call finds keys and values of other weights.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from ludus.engines.base import WeightSource
from ludus.engines.http.base import Load, refusal
from ludus.engines.weights import WeightFiles
from ludus.errors import BackendError, LudusError, UserError

UNFINISHED = "unfinished"  # the name of weights that are in part those of an update which was broken off


class Transfer:
    """One way of the weights to one server. Used on the engine's loop alone."""

    model: str | None = None
    """The adapter that calls ask for. None: the model itself."""
    _is_begun = False
    """The server was told once where weights come from."""

    async def prepare(self, http: httpx.AsyncClient, version: int, weights: WeightSource, name: str) -> Load:
        """What loads the version into a server that is paused; all that can be done before is done.

        name: of the version, for the server.
        """
        if not self._is_begun:
            await self.begin(http, weights)
            self._is_begun = True

        async def load() -> None:
            await start(http)
            await self.carry(http, weights)
            await finish(http, name)

        return load

    async def begin(self, http: httpx.AsyncClient, weights: WeightSource) -> None:
        """Give the server's weight transfer engine where weights will come from."""
        raise NotImplementedError

    async def carry(self, http: httpx.AsyncClient, weights: WeightSource) -> None:
        """Send the weights, between `start` and `finish`."""
        raise NotImplementedError

    def forget(self) -> None:
        """The server was started again: it has been sent nothing."""
        self._is_begun = False


class FileTransfer(Transfer):
    """All weights, through a file that our plugin in vLLM maps (`ludus_vllm`)."""

    def __init__(self, files: WeightFiles) -> None:
        self._files = files
        self._path = files.folder
        """What was written last."""

    async def prepare(self, http: httpx.AsyncClient, version: int, weights: WeightSource, name: str) -> Load:
        self._path = await asyncio.to_thread(self._files.write, version, weights)
        return await super().prepare(http, version, weights, name)

    async def begin(self, http: httpx.AsyncClient, weights: WeightSource) -> None:
        await begin(http, {"folder": str(self._files.folder)})

    async def carry(self, http: httpx.AsyncClient, weights: WeightSource) -> None:
        await post(http, "/update_weights", {"update_info": {"file": self._path.name}})


class AdapterTransfer(Transfer):
    """An adapter of one name, whose files are replaced.

    vLLM forgets loaded adapters when an update of the weights ends, and reads their files again at the next step; the
    update itself replaces nothing. Loading another adapter over one of the same name would make vLLM read the files at
    every step, and calls in flight would go on asking for those of before.
    """

    def __init__(self, files: WeightFiles) -> None:
        self.model = f"ludus-{secrets.token_hex(4)}"  # a server may know adapters of runs before
        self._files = files
        self._link = files.folder / self.model

    async def prepare(self, http: httpx.AsyncClient, version: int, weights: WeightSource, name: str) -> Load:
        folder = await asyncio.to_thread(self._files.write, version, weights)

        async def load() -> None:
            # Not earlier: an adapter that was forgotten is read at the next step, which may still be of the version
            # before, and other servers still read what lies in the folder itself.
            await asyncio.to_thread(self._point, folder)
            await start(http)
            await finish(http, name)
            if not self._is_begun:
                await post(http, "/v1/load_lora_adapter", {"lora_name": self.model, "lora_path": str(self._link)})
                self._is_begun = True

        return load

    def _point(self, folder: Path) -> None:
        """Make the link lead there, in one step."""
        new = self._link.with_name(f"{self._link.name}.new")
        new.symlink_to(folder.name)
        new.replace(self._link)


async def begin(http: httpx.AsyncClient, init_info: Mapping[str, Any]) -> None:
    """Give the server's weight transfer engine where weights will come from."""
    await post(http, "/init_weight_transfer_engine", {"init_info": dict(init_info)})


async def start(http: httpx.AsyncClient) -> None:
    """From now until `finish` the server loads what `/update_weights` names.

    An update that was broken off makes vLLM refuse the next one until it is finished: it is, under a name of nobody's.
    """
    try:
        await post(http, "/start_weight_update", None)
    except BackendError:
        with suppress(LudusError):  # there was none, and starting fails again for its own reason
            await finish(http, UNFINISHED)
        await post(http, "/start_weight_update", None)


async def finish(http: httpx.AsyncClient, name: str) -> None:
    """The server samples with what it has loaded, by this name."""
    await post(http, "/finish_weight_update", {"weight_version": name})


async def post(http: httpx.AsyncClient, path: str, body: Mapping[str, Any] | None) -> None:
    response = await http.post(path, json=body)
    if response.status_code == httpx.codes.NOT_FOUND:
        variable = "VLLM_ALLOW_RUNTIME_LORA_UPDATING" if "lora" in path else "VLLM_SERVER_DEV_MODE"
        raise UserError(
            f"the vLLM at {http.base_url} takes no weights, {path} is not served; start it with {variable}=1"
        )
    if response.is_error:
        raise refusal("vLLM", response)
