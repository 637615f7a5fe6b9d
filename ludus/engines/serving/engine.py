"""Ludus's own engine in another process, as an engine here. Needs no torch to sample.

Knows: the fields of `requests.py`, which are vLLM's where vLLM has some.  Knows not: weights beyond their bytes.
The server reports the version of every token, and loads new weights between two steps, so nothing pauses for them.
"""

from __future__ import annotations

import asyncio
import importlib
import os
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from ludus.engines.base import WeightSource
from ludus.engines.http.base import (
    PROBE_TEXT,
    UNPUBLISHED,
    Load,
    Server,
    StreamDelta,
    bearer,
    check_same_ids,
    error_for_status,
    refusal,
)
from ludus.engines.http.client import HttpEngine
from ludus.engines.kind import FILES, ServerKind
from ludus.engines.serving.app import OWNER
from ludus.engines.serving.command import KEY_VARIABLE, engine_command
from ludus.engines.serving.key_files import found_key
from ludus.engines.serving.settings import LudusServerSettings
from ludus.engines.vllm.engine import VllmProtocol
from ludus.engines.weights import WeightFiles, buckets
from ludus.errors import LudusError, UserError
from ludus.text.tokenizer import Tokenizer
from ludus.types import Call

BUCKET_BYTES = 64 * 2**20  # of tensors that are sent as one file; a larger tensor is one by itself


class LudusEngine(HttpEngine):
    """Samples with a server of ours."""

    protocol: LudusProtocol

    @classmethod
    def connect(
        cls, url: str, tokenizer: Tokenizer, *, api_key: str | None = None, files: WeightFiles | None = None
    ) -> LudusEngine:
        """The engine behind `url`. Blocks until the server has answered.

        tokenizer: that of the model which the server has.
        api_key: None: LUDUS_ENGINE_KEY's, or that of a server which this user runs on this machine.
        files: where the server finds new weights. None: they are sent to it.
        Raises UserError if it is no such server, or has another tokenizer; BackendError if it cannot be reached.
        """
        url = url.rstrip("/")
        api_key = api_key or os.environ.get(KEY_VARIABLE) or found_key(url)
        with LudusProtocol.asking(url, api_key) as ask:
            card = ask("GET", "/v1/models")["data"][0]
            if card.get("owned_by") != OWNER:
                raise UserError(
                    f"the server at {url} is none of `ludus engine serve`; say which it is with engine.kind"
                )
            check_same_ids(ask("POST", "/tokenize", {"prompt": PROBE_TEXT})["tokens"], tokenizer)
            version = int(ask("GET", "/stats")["version"])
        server = Server(url, int(card["max_model_len"]), tokenizer.stop_ids, bearer(api_key))
        protocol = LudusProtocol(server, card["id"], reports_processed_logprobs=True, files=files)
        if version == 0:
            return cls(protocol)
        protocol.first_version = version + 1  # it served somebody else
        return cls(protocol, version=UNPUBLISHED)


@dataclass(eq=False)
class LudusProtocol(VllmProtocol):
    """How a server of ours is spoken to: as vLLM where vLLM has a word for it."""

    name = "Ludus engine"
    reports_versions = True
    files: WeightFiles | None = None
    """None: weights are sent."""
    first_version: int = 0
    """What the server calls version 0: its own versions only rise, whoever publishes."""

    def _seed(self, call: Call, seed: int) -> int:
        """What is drawn depends on the seed and the place in the sequence: one that goes on draws as before."""
        return seed

    def check(self, call: Call) -> None:
        """What the engine cannot serve, it refuses itself, and it reports what it sampled from exactly."""

    def read(self, call: Call, num_read: int, event: Mapping[str, Any]) -> StreamDelta:
        if "error" in event:
            raise error_for_status(event["error"]["message"], int(event["error"]["code"]))
        if not event["choices"]:
            return StreamDelta(num_cached_tokens=int(event["usage"]["prompt_tokens_details"]["cached_tokens"]))
        (choice,) = event["choices"]
        kept_ids = (None if ids is None else tuple(ids) for ids in choice.get("kept_ids", ()))
        tops = (tuple((int(token), float(logprob)) for token, logprob in top) for top in choice.get("top_logprobs", ()))
        return StreamDelta(
            token_ids=tuple(choice["token_ids"]),
            logprobs=tuple(each["logprob"] for each in choice["logprobs"]["content"]),
            top_logprobs=tuple(tops),
            kept_ids=tuple(kept_ids),
            versions=tuple(max(version - self.first_version, UNPUBLISHED) for version in choice["versions"]),
            stop_reason=choice["finish_reason"],
            stop_string=choice["stop_reason"],
            prefill_s=choice.get("prefill_s"),
        )

    @classmethod
    def read_error(cls, response: httpx.Response) -> LudusError:
        return refusal(cls.name, response)

    async def score(self, http: httpx.AsyncClient, token_ids: Sequence[int]) -> tuple[float, ...]:
        if len(token_ids) < 2:
            return ()
        response = await http.post("/score", json={"token_ids": list(token_ids)})
        return tuple(self.checked(response)["logprobs"])

    async def prepare(self, http: httpx.AsyncClient, version: int, weights: WeightSource) -> Load:
        path = None if self.files is None else await asyncio.to_thread(self.files.write, version, weights)
        where = f"/weights/{self.first_version + version}"

        async def load() -> None:
            if path is None:
                self.checked(await http.put(where, content=_sent(weights)))
            else:
                self.checked(await http.post(where, json={"path": str(path)}))

        return load

    async def current_version(self, http: httpx.AsyncClient) -> int | None:
        return max(int(self.checked(await http.get("/stats"))["version"]) - self.first_version, UNPUBLISHED)


def ludus_delivery(settings: LudusServerSettings, files: WeightFiles) -> Mapping[str, Any]:
    """What `LudusEngine.connect` needs so that weights reach that server by these files."""
    del settings
    return {"files": files}


async def _sent(weights: WeightSource) -> AsyncIterator[bytes]:
    """The weights as safetensors, one bucket after the other; no more than one of them is in memory at once."""
    files = await asyncio.to_thread(lambda: iter(_files(weights.named_tensors())))
    while (file := await asyncio.to_thread(next, files, None)) is not None:
        yield file


def _files(tensors: Iterable[tuple[str, Any]]) -> Iterator[bytes]:
    save = importlib.import_module("safetensors.torch").save
    for bucket in buckets(tensors, BUCKET_BYTES):
        yield save({name: tensor.detach().cpu().contiguous() for name, tensor in bucket})


KIND = ServerKind(LudusEngine.connect, engine_command, ludus_delivery, (*FILES, "stream"))
