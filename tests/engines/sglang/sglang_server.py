"""A stand-in for SGLang's server: its own interface over scripted answers, on a socket and a thread.

What it takes and what it tells is held to `sglang_fields.json`, written from SGLang's own wheel: a route, a field of a
request or of a reply that SGLang does not have is an error here. Its replies are what `managers/tokenizer_manager.py`
builds: all tokens so far in every event, or with `--incremental-streaming-output` the new ones; masks and the
logprobs among them only with a bounded top_k (`managers/scheduler.py`); weights and the flush of the cache only while
no call runs, which a pause in the mode `retract` brings about.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import safe_open
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from ludus.engines.scripted import Answers, ScriptedEngine
from ludus.errors import LudusError, UserError
from ludus.http.server import HttpServer
from ludus.text.tokenizer import Tokenizer
from ludus.types import Call, Sampled, Sampling, TokenChunk

RECORD: Mapping[str, Any] = json.loads(Path(__file__).with_name("sglang_fields.json").read_text())
CONTEXT = 64
NUM_CACHED = 2
MOST_KEPT = 128


class StandIn:
    """SGLang's server with `answers` for a model."""

    def __init__(
        self,
        answers: Answers,
        tokenizer: Tokenizer,
        *,
        is_incremental: bool = True,
        info: Mapping[str, Any] | None = None,
        api_key: str | None = None,
        token_delay_s: float = 0.0,
    ) -> None:
        """info: what differs in what the server says of how it was started."""
        self.engine = ScriptedEngine(answers, tokenizer, context_length=CONTEXT, token_delay_s=token_delay_s)
        self.asked: list[dict[str, Any]] = []
        self.loaded: list[tuple[str, tuple[str, ...]]] = []
        """Label and names of the weights that were loaded."""
        self.read_as: Callable[[str], Sequence[int]] = tokenizer.encode
        self.finds: Callable[[str], Path] = Path
        """Where a folder lies on the server's machine."""
        self._is_incremental = is_incremental
        self._is_paused = False
        self._api_key = api_key
        self._info = {
            "version": RECORD["version"],
            "enable_deterministic_inference": True,
            "grammar_backend": "llguidance",
            "sampling_mask_max_tokens": MOST_KEPT,
            **(info or {}),
        }
        routes = {
            "/health": self._health,
            "/v1/models": self._models,
            "/server_info": self._server_info,
            "/model_info": self._model_info,
            "/tokenize": self._tokenize,
            "/generate": self._generate,
            "/pause_generation": self._pause,
            "/continue_generation": self._continue,
            "/update_weights_from_disk": self._update,
        }
        unknown = routes.keys() - set(RECORD["routes"])
        assert not unknown, f"SGLang has no {unknown}"
        self.app = Starlette(routes=[Route(path, each, methods=["GET", "POST"]) for path, each in routes.items()])

    async def _health(self, request: Request) -> Response:
        return Response()

    async def _models(self, request: Request) -> Response:
        if self._api_key is not None and request.headers.get("authorization") != f"Bearer {self._api_key}":
            return JSONResponse({"error": "Unauthorized"}, 401)
        return JSONResponse({"object": "list", "data": [_held("ModelCard", {"id": "m", "max_model_len": CONTEXT})]})

    async def _server_info(self, request: Request) -> Response:
        return JSONResponse(self._info)

    async def _model_info(self, request: Request) -> Response:
        return JSONResponse({"weight_version": self.loaded[-1][0] if self.loaded else "default"})

    async def _tokenize(self, request: Request) -> Response:
        ids = self.read_as(_held("TokenizeRequest", await request.json(), "add_special_tokens")["prompt"])
        return JSONResponse(_held("TokenizeResponse", {"tokens": ids, "count": len(ids), "max_model_len": CONTEXT}))

    async def _pause(self, request: Request) -> Response:
        body = _held("PauseGenerationReqInput", await request.json())
        assert body["mode"] == "retract", "in another mode calls are lost, or the cache cannot be flushed"
        await self.engine.pause()
        self._is_paused = True
        return JSONResponse({"message": "Generation paused successfully.", "status": "ok"})

    async def _continue(self, request: Request) -> Response:
        _held("ContinueGenerationReqInput", await request.json())
        self._is_paused = False
        await self.engine.resume()
        return JSONResponse({"message": "Generation continued successfully.", "status": "ok"})

    async def _update(self, request: Request) -> Response:
        body = _held("UpdateWeightFromDiskReqInput", await request.json())
        files = await asyncio.to_thread(lambda: sorted(self.finds(body["model_path"]).glob("*.safetensors")))
        if not files:
            said = f"Failed to get weights iterator: Cannot find any model weights with `{body['model_path']}`."
            return JSONResponse({"success": False, "message": said, "num_paused_requests": 0}, 400)
        if not self._is_paused and self.engine.stats().num_running:
            return JSONResponse({"success": False, "message": "Flush cache failed.", "num_paused_requests": 0}, 400)
        names: list[str] = []
        for file in files:
            with safe_open(file, framework="pt") as opened:
                names += opened.keys()
        self.loaded.append((body["weight_version"], tuple(names)))
        return JSONResponse({"success": True, "message": "Succeeded", "num_paused_requests": 0})

    async def _generate(self, request: Request) -> Response:
        body = _held("GenerateReqInput", await request.json())
        params = _held("SamplingParams", body["sampling_params"])
        if body.get("logprob_start_len") == 0:
            scored = zip(await self.engine.score(body["input_ids"]), body["input_ids"][1:], strict=True)
            told = [[None, body["input_ids"][0], None], *([logprob, token, None] for logprob, token in scored)]
            return JSONResponse({"output_ids": [3], "meta_info": _about(input_token_logprobs=told)})
        if body["return_sampling_mask"] and not 1 < params["top_k"] <= MOST_KEPT:
            return JSONResponse({"error": {"message": "return_sampling_mask requires finite top_k"}}, 400)
        self.asked.append(body)
        call = Call(body["rid"], "sglang", tuple(body["input_ids"]), _sampling(params, body["top_logprobs_num"]))
        return StreamingResponse(self._stream(call, body["return_sampling_mask"]), media_type="text/event-stream")

    async def _stream(self, call: Call, is_masked: bool) -> AsyncIterator[str]:
        chunks: asyncio.Queue[TokenChunk | None] = asyncio.Queue()
        sampling = asyncio.create_task(self.engine.generate(call, chunks.put_nowait))
        sampling.add_done_callback(lambda _: chunks.put_nowait(None))
        told: list[tuple[int, float]] = []
        try:
            while (chunk := await chunks.get()) is not None:
                new = list(zip(chunk.token_ids, chunk.logprobs, strict=True))
                told += new
                yield self._event(call, new, told, is_masked, None)
            yield self._event(call, [], told, is_masked, await sampling)
        except LudusError as error:
            code = 400 if isinstance(error, UserError) else 500
            refused = {"message": str(error), "type": "invalid_request_error", "code": code, "retryable": False}
            yield f"data: {json.dumps({'error': refused})}\n\n"
        finally:
            sampling.cancel()
        yield "data: [DONE]\n\n"

    def _event(
        self,
        call: Call,
        new: Sequence[tuple[int, float]],
        all_: Sequence[tuple[int, float]],
        is_masked: bool,
        sampled: Sampled | None,
    ) -> str:
        told = new if self._is_incremental else all_
        about = _about(
            finish_reason=None if sampled is None else _finish(sampled),
            completion_tokens=len(all_),
            cached_tokens=NUM_CACHED,
            prompt_tokens=len(call.prompt_ids),
            output_token_logprobs=[[logprob, token, None] for token, logprob in told],
        )
        if num_top := call.sampling.top_logprobs:
            about["output_top_logprobs"] = [
                [[logprob - idx, token + idx, None] for idx in range(num_top)] for token, logprob in told
            ]
        if is_masked:
            about["output_token_sampling_mask"] = [[token + 2, token, token + 1] for token, _ in told]
            about["output_token_sampling_logprobs"] = [logprob / 2 for _, logprob in told]
        return f"data: {json.dumps({'output_ids': [token for token, _ in told], 'meta_info': _about(**about)})}\n\n"


@contextmanager
def serving(stand_in: StandIn) -> Iterator[str]:
    """The URL of the server while the block runs."""
    with HttpServer(stand_in.app, name="stand-in") as server:
        yield server.base_url


def _held(name: str, body: dict[str, Any], *extra: str) -> dict[str, Any]:
    """`body`, all of whose fields the class has. extra: what is let through besides, as SGLang does here."""
    unknown = body.keys() - RECORD["classes"][name].keys() - {*extra, "rid"}
    assert not unknown, f"SGLang's {name} has no {sorted(unknown)}"
    return body


def _about(**told: Any) -> dict[str, Any]:
    unknown = told.keys() - set(RECORD["meta_info"])
    assert not unknown, f"SGLang tells no {sorted(unknown)}"
    return told


def _finish(sampled: Sampled) -> dict[str, Any]:
    if sampled.stop_reason == "stop":
        return {"type": "stop", "matched": sampled.stop_string or sampled.token_ids[-1]}
    if sampled.stop_reason == "length":
        return {"type": "length", "length": len(sampled.token_ids)}
    return {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}


def _sampling(params: dict[str, Any], num_top: int) -> Sampling:
    same = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
    return Sampling(
        **{name: params[name] for name in same},
        top_k=max(params["top_k"], 0),
        seed=params["sampling_seed"],
        max_new_tokens=params["max_new_tokens"],
        stop=tuple(params["stop"]),
        stop_token_ids=() if params["ignore_eos"] else tuple(params["stop_token_ids"]),
        ignore_eos=True,  # the model's own are among those that are told
        logit_bias=tuple((int(token), value) for token, value in params.get("logit_bias", {}).items()),
        grammar=params.get("ebnf"),
        top_logprobs=num_top,
    )
