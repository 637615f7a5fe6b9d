"""An engine's ASGI application: tokens in, tokens out, and new weights, behind one key.

Knows: URLs, status codes, streams of events.  Knows not: sockets, torch, which engine it serves.
Rules: everything but the probe wants the key, if there is one. A caller that closes its connection aborts its call.
Where vLLM has a word for something, it is the word here: a client of its interface can sample from this server.

    GET  /health                        whether it can serve: 503 once its engine has ended
    GET  /v1/models                     which model, and its context
    GET  /stats                         counters, and the version of the weights
    POST /tokenize                      {prompt}: how the model's tokenizer reads it
    POST /inference/v1/generate         tokens in; tokens, logprobs and versions out, streamed if asked for
    POST /abort_requests                {request_ids}: their answers end with what they have
    POST /score                         {token_ids}: the logprob of every token but the first
    POST /pause?mode=keep, /resume      calls in flight stay where they are
    GET  /is_paused
    PUT  /weights/{version}             safetensors, one or more, one after the other
    POST /weights/{version}             {path}: the same in a file, or in a folder, of this machine
"""

import asyncio
import dataclasses
import itertools
import json
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from ludus.engines.base import Engine
from ludus.engines.serving.requests import AbortBody, GenerateBody, PathBody, ScoreBody, TextBody
from ludus.engines.serving.weight_receiver import WeightReceiver
from ludus.errors import AgentError, BackendError, LudusError, UserError
from ludus.http.api import application, guarded
from ludus.http.body import MAX_BODY_BYTES, read_model
from ludus.http.keys import is_key, keys_of
from ludus.http.numbers import Count
from ludus.processes.gather import first_of
from ludus.text.tokenizer import Tokenizer
from ludus.types import Call, Sampled, TokenChunk

logger = logging.getLogger(__name__)

OWNER = "ludus"
"""By which a client knows that it speaks to this server."""
UNAUTHORIZED = 401


class EngineApi:
    """The handlers of the routes. Its engine is paused by nobody else."""

    def __init__(
        self, engine: Engine, tokenizer: Tokenizer, receiver: WeightReceiver, *, model: str, key_digest: bytes | None
    ) -> None:
        """model: its name.  key_digest: of the key that everybody needs. None: nobody needs one."""
        self._engine = engine
        self._tokenizer = tokenizer
        self._receiver = receiver
        self._model = model
        self._key_digest = key_digest
        self._is_paused = False
        self._ids = (f"call-{idx}" for idx in itertools.count())

    def build(self) -> FastAPI:
        """The application."""
        api = guarded(self._check_key, read_model, most_bytes=MAX_BODY_BYTES)
        api.get("/v1/models")(self.models)
        api.get("/stats")(self.stats)
        api.post("/tokenize")(self.tokenize)
        api.post("/inference/v1/generate")(self.generate)
        api.post("/abort_requests")(self.abort)
        api.post("/score")(self.score)
        api.post("/pause")(self.pause)
        api.post("/resume")(self.resume)
        api.get("/is_paused")(self.is_paused)
        api.put("/weights/{version}")(self.receive)
        api.post("/weights/{version}")(self.read_file)
        app = application(api, refuse=_refuse, no_route=_refuse)
        app.add_route("/health", self._probe)
        return app

    def _check_key(self, request: Request) -> None:
        if self._key_digest is not None and not any(is_key(key, self._key_digest) for key in keys_of(request.headers)):
            raise AgentError("this engine wants its key as a bearer token", status=UNAUTHORIZED)

    # ---- what it is

    async def _probe(self, request: Request) -> Response:
        await self._engine.check()
        return Response()

    async def models(self) -> dict[str, Any]:
        card = {"id": self._model, "object": "model", "owned_by": OWNER, "max_model_len": self._engine.context_length}
        return {"object": "list", "data": [card]}

    async def stats(self) -> dict[str, Any]:
        return dataclasses.asdict(self._engine.stats())

    async def tokenize(self, body: TextBody) -> dict[str, Any]:
        if body.add_special_tokens:
            raise UserError("add_special_tokens=true: prompts are taken as they are; leave it out")
        token_ids = list(self._tokenizer.encode(body.prompt))
        return {"count": len(token_ids), "max_model_len": self._engine.context_length, "tokens": token_ids}

    # ---- tokens

    async def generate(self, body: GenerateBody, request: Request) -> Response:
        if body.model not in (None, self._model):
            raise UserError(f"model={body.model!r} is not served here; it is {self._model!r}")
        call = body.call(next(self._ids))
        if body.stream:
            return StreamingResponse(self._events(call), media_type="text/event-stream")
        sampled = await self._sampled(call, request)
        chunk = TokenChunk(sampled.token_ids, sampled.logprobs, sampled.versions)
        choice = {**_choice(chunk, sampled.top_logprobs), **_end(sampled)}
        return JSONResponse({"request_id": call.id, "choices": [choice], "usage": _usage(call, sampled)})

    async def _sampled(self, call: Call, request: Request) -> Sampled:
        """The whole answer. Raises ClientDisconnect if its caller leaves before, which aborts it."""
        # the body was read: what comes next is the end
        sampled = await first_of(self._engine.generate(call), request.receive())
        if not isinstance(sampled, Sampled):
            raise ClientDisconnect
        return sampled

    async def _events(self, call: Call) -> AsyncIterator[str]:
        """The answer as it comes; what is known of it as a whole is in the last event but one, usage in the last."""
        chunks: asyncio.Queue[TokenChunk | None] = asyncio.Queue()
        sampling = asyncio.create_task(self._engine.generate(call, chunks.put_nowait))
        sampling.add_done_callback(lambda _: chunks.put_nowait(None))
        try:
            while (chunk := await chunks.get()) is not None:
                yield _event({"request_id": call.id, "choices": [_choice(chunk, ())]})
            sampled = await sampling
            last = {**_choice(TokenChunk((), (), ()), ()), **_end(sampled), "top_logprobs": sampled.top_logprobs}
            yield _event({"request_id": call.id, "choices": [last]})
            yield _event({"request_id": call.id, "choices": [], "usage": _usage(call, sampled)})
        except LudusError as error:
            yield _event(_error_body(error, _status(error)))
        finally:
            sampling.cancel()  # its caller has left
        yield "data: [DONE]\n\n"

    async def abort(self, body: AbortBody) -> dict[str, str]:
        for call_id in body.request_ids:
            await self._engine.abort(call_id)
        return {"status": "aborted"}

    async def score(self, body: ScoreBody) -> Response:
        return JSONResponse({"logprobs": await self._engine.score(body.token_ids)})

    # ---- pauses and weights

    async def pause(self, mode: str = "") -> dict[str, str]:
        if mode != "keep":
            raise UserError(f"mode={mode!r} is not known here: calls in flight stay where they are; say mode=keep")
        await self._engine.pause()
        self._is_paused = True
        return {"status": "paused"}

    async def resume(self) -> dict[str, str]:
        await self._engine.resume()
        self._is_paused = False
        return {"status": "resumed"}

    async def is_paused(self) -> dict[str, bool]:
        return {"is_paused": self._is_paused}

    async def receive(self, version: Count, request: Request) -> dict[str, int]:
        await self._receiver.receive(version, request.stream())
        logger.info("engine.published version=%d by=stream", version)
        return {"version": version}

    async def read_file(self, version: Count, body: PathBody) -> dict[str, int]:
        await self._receiver.read(version, Path(body.path))
        logger.info("engine.published version=%d by=path", version)
        return {"version": version}


# ---- how answers are sent


def _choice(chunk: TokenChunk, tops: Sequence[Sequence[tuple[int, float]]]) -> dict[str, Any]:
    content = [
        {
            "token_id": token,
            "logprob": logprob,
            "top_logprobs": [{"token_id": each, "logprob": its} for each, its in top],
        }
        for token, logprob, top in itertools.zip_longest(chunk.token_ids, chunk.logprobs, tops, fillvalue=())
    ]
    about = {"token_ids": chunk.token_ids, "logprobs": {"content": content}, "versions": chunk.versions}
    return {"index": 0, **about, "finish_reason": None, "stop_reason": None}


def _end(sampled: Sampled) -> dict[str, Any]:
    """What is known when the answer is whole."""
    return {
        "finish_reason": sampled.stop_reason,
        "stop_reason": sampled.stop_string,
        "seed": sampled.seed,
        "kept_ids": sampled.kept_ids,
        "prefill_s": sampled.prefill_s,
    }


def _usage(call: Call, sampled: Sampled) -> Mapping[str, Any]:
    num_prompt, num_sampled = len(call.prompt_ids), len(sampled.token_ids)
    sizes = {"prompt_tokens": num_prompt, "completion_tokens": num_sampled, "total_tokens": num_prompt + num_sampled}
    return {**sizes, "prompt_tokens_details": {"cached_tokens": sampled.num_cached_tokens}}


def _event(body: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(body)}\n\n"


def _error_body(error: Exception, status: int) -> Mapping[str, Any]:
    return {"error": {"message": str(error), "type": type(error).__name__, "param": None, "code": status}}


async def _refuse(_request: Request, error: Exception) -> Response:
    status = _status(error)
    return JSONResponse(_error_body(error, status), status)


def _status(error: Exception) -> int:
    if isinstance(error, AgentError | HTTPException):
        return error.status if isinstance(error, AgentError) else error.status_code
    if isinstance(error, BackendError):
        return 503
    return 400 if isinstance(error, UserError) else 500
