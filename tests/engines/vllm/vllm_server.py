"""A stand-in for vLLM's server: its token-in/token-out interface over scripted answers, on a socket and a thread.

Paths and fields are held to `vllm_fields.json`, written from vLLM's own wheel: what it does not read is refused here.
The order of events is that of vLLM 0.32 (`vllm/entrypoints/scale_out/token_in_token_out`, classes
GenerateTokensStreamResponse, GenerateLogProbs; `entrypoints/rl/online/api_router.py` for the pause). What sleeps and
wakes is as in `entrypoints/serve/dev/sleep/api_router.py`, `v1/engine/core.py` and `v1/executor/abstract.py`.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any

import torch
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ludus.engines.scripted import Answers, ScriptedEngine
from ludus.errors import LudusError, UserError
from ludus.http.server import HttpServer
from ludus.text.tokenizer import Tokenizer
from ludus.types import Call, Sampled, Sampling, TokenChunk
from tests.engines.contract import ALLOWED, NoNewWeights

MODEL = "org/model"
CONTEXT = 64
NUM_CACHED = 2
RAW_LOGPROB = -12.0
"""Of a token that is the only one allowed, told by a server that knows the bare model's logprobs alone."""
SIZES = {"weights": 3, "kv_cache": 5}
"""Of what a server that is awake has on its card."""
WEIGHT_PATHS = (
    *("/init_weight_transfer_engine", "/start_weight_update", "/update_weights", "/finish_weight_update"),
    *("/v1/load_lora_adapter", "/reset_prefix_cache"),
)
_NO_TOKENS = TokenChunk((), (), ())
_SAME_NAME = (
    *("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
    *("seed", "stop", "stop_token_ids", "ignore_eos"),
)


RECORD: Mapping[str, Any] = json.loads(Path(__file__).with_name("vllm_fields.json").read_text())
_NOT_RECORDED = ("/health", "/version", "/v1/models")  # of other parts of vLLM, and without anything to read


def unknown(path: str, query: Mapping[str, Any], body: Any) -> str | None:
    """What of a request vLLM does not read. None: it reads all of it."""
    if path in _NOT_RECORDED:
        return None
    route = RECORD["routes"].get(path)
    if route is None:
        return f"there is no {path}"
    known = set(route["body"]) if route["class"] is None else set(_fields(route["class"]))
    odd = [*(set(query) - set(route["query"])), *(set(body or ()) - known)]
    for name, kind in (("sampling_params", "SamplingParams"), ("stream_options", "StreamOptions")):
        odd += set((body or {}).get(name) or ()) - set(_fields(kind))
    structured = ((body or {}).get("sampling_params") or {}).get("structured_outputs") or ()
    odd += set(structured) - set(_fields("StructuredOutputsParams"))
    return f"{path} does not read {', '.join(sorted(odd))}" if odd else None


def _fields(name: str) -> Iterable[str]:
    """Of a class as requests name them; what begins with an underscore is vLLM's own."""
    found = RECORD["classes"]["TokenizeCompletionRequest" if name == "TokenizeRequest" else name]
    return (each for each in found if not each.startswith("_"))


class _AsItsWheel:
    """Refuses what vLLM does not read: pydantic would leave most of it out without a word."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        request, messages = Request(scope, receive), []
        while not messages or messages[-1].get("more_body"):
            messages.append(await receive())
        content = b"".join(each.get("body", b"") for each in messages)
        wrong = unknown(request.url.path, request.query_params, json.loads(content) if content else None)
        if wrong is not None:
            return await _error(422, "UnprocessableEntityError", wrong)(scope, receive, send)

        async def again() -> Message:
            return messages.pop(0) if messages else await receive()

        return await self._app(scope, again, send)


class StandIn:
    """vLLM's server with `answers` for a model."""

    def __init__(
        self,
        answers: Answers,
        tokenizer: Tokenizer,
        *,
        processed: bool = True,
        scale_out: bool = True,
        dev_mode: bool = True,
        api_key: str | None = None,
        context: int = CONTEXT,
        token_delay_s: float = 0.0,
    ) -> None:
        self.engine = ScriptedEngine(answers, tokenizer, context_length=context, token_delay_s=token_delay_s)
        self.version = "0.32.0"
        self.asked: list[dict[str, Any]] = []
        self.read_as: Callable[[str], Sequence[int]] = tokenizer.encode
        self._processed = processed
        self._scale_out = scale_out
        self._api_key = api_key
        routes = [
            Route("/health", self._health),
            Route("/version", lambda _: JSONResponse({"version": self.version})),
            Route("/v1/models", self._models),
            Route("/tokenize", self._tokenize, methods=["POST"]),
            Route("/inference/v1/generate", self._generate, methods=["POST"]),
        ]
        self.loaded: list[tuple[str, Any]] = []
        """What was sent to the weight interface, path and body."""
        self.fails_once: set[str] = set()
        """Paths whose next request fails."""
        self.refuses: set[str] = set()
        """Paths whose requests fail."""
        self.hangs_at = ""
        """A path whose requests are never answered."""
        self.was_asked = threading.Event()
        """It was asked there."""
        self.order: list[str] = []
        """Every switch and every step of new weights, with its query."""
        self.asleep: set[str] = set()
        """What of SIZES is not on the card."""
        self._is_paused = False
        self._is_updating = False
        self._names = {0: "default"}
        """Of the weights, by the version that the scripted engine has for them."""
        if dev_mode:
            paths = ("/pause", "/resume", "/sleep", "/wake_up")
            routes += [Route(path, self._switch, methods=["POST"]) for path in paths]
            routes.append(Route("/is_sleeping", self._is_sleeping))
            routes += [Route(path, self._weights, methods=["POST"]) for path in WEIGHT_PATHS]
            routes.append(Route("/weight_info", self._weight_info))
            routes.append(Route("/get_world_size", lambda _: JSONResponse({"world_size": 2})))
        self.app = Starlette(routes=routes, middleware=[Middleware(_AsItsWheel)])

    async def _health(self, request: Request) -> Response:
        return Response()

    async def _models(self, request: Request) -> Response:
        if self._api_key is not None and request.headers.get("authorization") != f"Bearer {self._api_key}":
            return JSONResponse({"error": "Unauthorized"}, 401)
        card = {
            "id": MODEL,
            "object": "model",
            "owned_by": "vllm",
            "root": MODEL,
            "max_model_len": self.engine.context_length,
        }
        return JSONResponse({"object": "list", "data": [card]})

    async def _tokenize(self, request: Request) -> Response:
        ids = self.read_as((await request.json())["prompt"])
        room = self.engine.context_length
        return JSONResponse({"count": len(ids), "max_model_len": room, "tokens": ids, "token_strs": None})

    async def _switch(self, request: Request) -> Response:
        await self._hang(request)
        if self._is_failing(request):
            return _error(500, "InternalServerError", "out of luck")
        self._note(request)
        does_wake = request.url.path == "/wake_up"
        if request.url.path == "/resume" and self.asleep:
            return _error(500, "InternalServerError", f"{self.asleep} are not on the card")
        if request.url.path in ("/pause", "/sleep") and request.query_params.get("mode", "abort") == "abort":
            for asked in self.asked:
                await self.engine.abort(asked.get("request_id", ""))
        if request.url.path == "/sleep" and request.query_params.get("level", "1") != "0":
            self.asleep = {*SIZES}
        tags = set(request.query_params.getlist("tags")) or self.asleep
        if does_wake and tags <= self.asleep:
            self.asleep = self.asleep - tags
        if not does_wake or not self.asleep:
            self._is_paused = request.url.path in ("/pause", "/sleep")
            await (self.engine.pause() if self._is_paused else self.engine.resume())
        return JSONResponse({"status": "ok"})

    async def _is_sleeping(self, request: Request) -> Response:
        return JSONResponse({"is_sleeping": bool(self._is_paused or self.asleep)})

    @property
    def card_size(self) -> int:
        """Of what it has on its card."""
        return sum(size for part, size in SIZES.items() if part not in self.asleep)

    def _note(self, request: Request) -> None:
        query = request.url.query
        self.order.append(f"{request.url.path}?{query}" if query else request.url.path)

    async def _weights(self, request: Request) -> Response:
        await self._hang(request)
        body = json.loads(await request.body() or "null")
        self._note(request)
        if "weights" in self.asleep and request.url.path not in ("/init_weight_transfer_engine", "/reset_prefix_cache"):
            return _error(500, "InternalServerError", "the weights are not on the card")
        begins, ends = (request.url.path == f"/{word}_weight_update" for word in ("start", "finish"))
        if self._is_failing(request) or (begins and self._is_updating) or (ends and not self._is_updating):
            return _error(500, "InternalServerError", "an update is active already, or none is")
        self._is_updating = (self._is_updating or begins) and not ends
        self.loaded.append((request.url.path, body))
        if request.url.path == "/finish_weight_update":
            version = self.engine.stats().version + 1
            self._names[version] = body["weight_version"]
            await self.engine.publish(version, NoNewWeights())
        return JSONResponse({"message": "done"})

    async def _weight_info(self, request: Request) -> Response:
        return JSONResponse({"weight_version": self._names[self.engine.stats().version]})

    def _is_failing(self, request: Request) -> bool:
        does_fail = request.url.path in self.fails_once | self.refuses
        self.fails_once.discard(request.url.path)
        return does_fail

    async def _hang(self, request: Request) -> None:
        if request.url.path == self.hangs_at:
            self.was_asked.set()
            while (await request.receive())["type"] != "http.disconnect":
                pass

    def restart(self) -> None:
        """It is a server again that has been told nothing."""
        self._names[self.engine.stats().version] = "default"
        self.loaded.clear()

    async def _generate(self, request: Request) -> Response:
        if not self._scale_out:
            return _error(403, "PermissionDeniedError", "Scale-out endpoints are disabled.")
        body = await request.json()
        params = body["sampling_params"]
        if params.get("stop") and not params.get("detokenize", True):
            return _error(400, "BadRequestError", "stop strings are only supported when detokenize is True.")
        self.asked.append(body)
        if params.get("allowed_token_ids"):
            logprob = 0.0 if self._processed else RAW_LOGPROB
            return JSONResponse(_whole(params["allowed_token_ids"][0], logprob))
        if params.get("prompt_logprobs") is not None:
            scored = zip(body["token_ids"][1:], await self.engine.score(body["token_ids"]), strict=True)
            rows = [{str(token): {"logprob": logprob, "rank": 1}} for token, logprob in scored]
            return JSONResponse({**_whole(body["token_ids"][0], 0.0), "prompt_logprobs": [None, *rows]})
        call = Call(body["request_id"], "vllm", tuple(body["token_ids"]), _sampling(params))
        stream = self._stream(call, params.get("stream_interval", 1))
        return StreamingResponse(stream, media_type="text/event-stream")

    async def _stream(self, call: Call, interval: int) -> AsyncIterator[str]:
        """The first token at once, then as many as that together, as vLLM's `make_request_output` (0.32) does."""
        chunks: asyncio.Queue[TokenChunk | None] = asyncio.Queue()
        sampling = asyncio.create_task(self.engine.generate(call, chunks.put_nowait))
        sampling.add_done_callback(lambda _: chunks.put_nowait(None))
        held, wanted = _NO_TOKENS, 1
        try:
            while (chunk := await chunks.get()) is not None:
                held = _together(held, chunk)
                # the last tokens come with the reason why they are the last
                if len(held.token_ids) >= wanted and not sampling.done():
                    yield self._event(call, held, None)
                    held, wanted = _NO_TOKENS, interval
            yield self._event(call, held, await sampling)
            usage = {"prompt_tokens": len(call.prompt_ids), "prompt_tokens_details": {"cached_tokens": NUM_CACHED}}
            yield f"data: {json.dumps({'request_id': call.id, 'choices': [], 'usage': usage})}\n\n"
        except LudusError as error:
            code = 400 if isinstance(error, UserError) else 500
            told = {"message": str(error), "type": "BadRequestError", "param": None, "code": code}
            yield f"data: {json.dumps({'error': told})}\n\n"
        finally:
            sampling.cancel()
        yield "data: [DONE]\n\n"

    def _event(self, call: Call, chunk: TokenChunk, sampled: Sampled | None) -> str:
        num_top = call.sampling.top_logprobs
        content = [
            {"token_id": token, "logprob": logprob, "rank": 1, "top_logprobs": _top(token, logprob, num_top)}
            for token, logprob in zip(chunk.token_ids, chunk.logprobs, strict=True)
        ]
        choice = {
            "index": 0,
            "finish_reason": None if sampled is None else sampled.stop_reason,
            "stop_reason": None if sampled is None else sampled.stop_string,
            "token_ids": chunk.token_ids,
            "routed_experts": None,
            "sampling_mask": [[*range(token, token + 3)] for token in chunk.token_ids]
            if call.sampling.top_k == 3
            else None,
            "weight_versions": None if sampled is None else self._spans(sampled.versions),
            "logprobs": {"content": content},
        }
        body = {"request_id": f"generate-tokens-{call.id}", "usage": None, "output_mode": "tokens", "choices": [choice]}
        return f"data: {json.dumps(body)}\n\n"

    def _spans(self, versions: Sequence[int]) -> list[dict[str, Any]]:
        """The name of the weights for each run of tokens, as vLLM tells them with the last one."""
        runs = [(version, len([*run])) for version, run in groupby(versions)]
        ends = [*accumulate(length for _, length in runs)]
        return [
            {"version": self._names[version], "start": end - length, "end": end}
            for (version, length), end in zip(runs, ends, strict=True)
        ]


@contextmanager
def serving(stand_in: StandIn) -> Iterator[str]:
    """The URL of the server while the block runs."""
    with HttpServer(stand_in.app, name="stand-in") as server:
        yield server.base_url


def _sampling(params: dict[str, Any]) -> Sampling:
    same = {name: params[name] for name in _SAME_NAME}
    same |= {"stop": tuple(same["stop"]), "stop_token_ids": tuple(same["stop_token_ids"])}
    bias = tuple((int(token), value) for token, value in params.get("logit_bias", {}).items())
    grammar = params.get("structured_outputs", {}).get("grammar")
    caps = {"max_new_tokens": params["max_tokens"], "top_logprobs": params["logprobs"]}
    return Sampling(**same, **caps, logit_bias=bias, grammar=grammar)


def _together(first: TokenChunk, second: TokenChunk) -> TokenChunk:
    logprobs, versions = first.logprobs + second.logprobs, first.versions + second.versions
    return TokenChunk(first.token_ids + second.token_ids, logprobs, versions)


def _top(token: int, logprob: float, num: int) -> list[dict[str, Any]]:
    """The sampled token first, then as many others as there were asked for, as vLLM puts them."""
    pairs = [(token, logprob), *((token + idx, logprob - idx) for idx in range(1, num + 1))]
    return [{"token_id": each, "logprob": value, "rank": idx} for idx, (each, value) in enumerate(pairs)]


def _whole(token: int, logprob: float) -> dict[str, Any]:
    content = [{"token_id": token, "logprob": logprob, "rank": 1, "top_logprobs": []}]
    choice = {"index": 0, "finish_reason": "length", "token_ids": [token], "logprobs": {"content": content}}
    return {"request_id": "generate-tokens-x", "model": MODEL, "choices": [choice], "output_mode": "tokens"}


def _error(status: int, kind: str, message: str) -> Response:
    return JSONResponse({"error": {"message": message, "type": kind, "param": None, "code": status}}, status)


def improvise(asked: Call) -> list[int]:
    """Thirty tokens that depend on the prompt and the seed; under a grammar, what the suite's allows."""
    if asked.sampling.grammar is not None:
        return [allowed[0] for allowed in ALLOWED]
    digest = hashlib.blake2b(f"{asked.prompt_ids}/{asked.sampling.seed}".encode(), digest_size=30).digest()
    banned = {token for token, _ in asked.sampling.logit_bias}
    return [3 + byte for byte in digest if 3 + byte not in banned]


class Tensors:
    """One tensor to publish."""

    def __init__(self) -> None:
        self.num_copied = 0

    def named_tensors(self) -> Iterable[tuple[str, Any]]:
        yield "model.norm.weight", torch.ones(4)

    def copy_into_shared(self) -> None:
        self.num_copied += 1
