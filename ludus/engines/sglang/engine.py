"""A running SGLang server as an engine, through its own `/generate` with token ids. Needs no torch.

Knows: SGLang's requests and replies (0.5.23), and what it must be started with.  Knows not: how weights are written.
Unless SGLang was started to be deterministic, it ignores the seeds of calls.
What it reports of an answer may be all so far or the new alone, as the server was started; both are read.

Never run against a real server: there is none for a processor. Requests are checked against SGLang's own classes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from ludus.engines.base import WeightSource
from ludus.engines.http.base import (
    PROBE_TEXT,
    STOP_REASONS,
    UNPUBLISHED,
    Load,
    Server,
    ServerProtocol,
    StreamDelta,
    bearer,
    check_same_ids,
    error_for_status,
    kept_ids,
)
from ludus.engines.http.client import HttpEngine
from ludus.engines.kind import ServerKind
from ludus.engines.sglang.command import sglang_command
from ludus.engines.sglang.settings import SglangSettings
from ludus.engines.weights import WeightFiles
from ludus.errors import BackendError, ConfigError, UserError
from ludus.text.tokenizer import Tokenizer
from ludus.types import Call, Sampling, StopReason

GENERATE = "/generate"
VERSION = (0, 5, 23)
"""The oldest whose classes the requests were checked against."""


class SglangEngine(HttpEngine):
    """Samples with an SGLang server."""

    protocol: SglangProtocol

    @classmethod
    def connect(
        cls,
        url: str,
        tokenizer: Tokenizer,
        *,
        api_key: str | None = None,
        files: WeightFiles | None = None,
        is_deterministic: bool = False,
    ) -> SglangEngine:
        """The engine behind `url`, such as http://localhost:30000. Blocks until the server has answered.

        tokenizer: that of the model which the server has.
        files: where the server finds new weights. None: its weights are its own, and all tokens carry version 0.
        is_deterministic: it has to draw calls by their seeds.
        Raises UserError if the server has another tokenizer or was started without what exact records need,
        BackendError if it cannot be reached.
        """
        url = url.rstrip("/").removesuffix("/v1")
        with SglangProtocol.asking(url, api_key) as ask:
            card = ask("GET", "/v1/models")["data"][0]
            info = ask("GET", "/server_info")
            _check_started_with(url, info, is_deterministic=is_deterministic)
            read = ask("POST", "/tokenize", {"prompt": PROBE_TEXT, "add_special_tokens": False})
            check_same_ids(read["tokens"], tokenizer)
        has_grammars = info.get("grammar_backend") == "llguidance"
        most_kept = int(info.get("sampling_mask_max_tokens") or 0)
        server = Server(url, int(card["max_model_len"]), tokenizer.stop_ids, bearer(api_key))
        protocol = SglangProtocol(server, has_grammars, most_kept, files)
        return cls(protocol, version=0 if files is None else UNPUBLISHED)


@dataclass(eq=False)
class SglangProtocol(ServerProtocol):
    """What an SGLang server says of itself, and how it is spoken to."""

    name = "SGLang"
    has_grammars: bool
    """It reads grammars in llguidance's form."""
    most_kept: int
    """Of a token drawn among more than so many it tells neither which nor the logprob among them."""
    files: WeightFiles | None = None
    """None: weights cannot be published."""

    def check(self, call: Call) -> None:
        sampling = call.sampling
        if sampling.truncates and not sampling.is_greedy and not 1 < sampling.top_k <= self.most_kept:
            raise UserError(
                f"SGLang reports the logprob of a token among those that top-p, top-k and min-p leave only with a "
                f"top_k from 2 to {self.most_kept}, not with top_k={sampling.top_k}; set one, start it with a larger "
                "--sampling-mask-max-tokens, or leave top-p and min-p out"
            )
        if sampling.ignore_eos and sampling.stop_token_ids:
            raise UserError("ignore_eos makes SGLang ignore stop_token_ids too; leave one of them out")
        if sampling.grammar is not None and not self.has_grammars:
            raise UserError(
                "this SGLang reads no grammars of llguidance's form; start it with --grammar-backend llguidance"
            )
        for name in ("presence_penalty", "frequency_penalty"):
            if not -2 <= getattr(sampling, name) <= 2:
                raise UserError(f"{name}={getattr(sampling, name)} is refused by SGLang; it is between -2 and 2")
        if not 0 < sampling.repetition_penalty <= 2:
            raise UserError(f"repetition_penalty={sampling.repetition_penalty} is refused by SGLang; it is up to 2")

    def request_for(self, call: Call, seed: int) -> tuple[str, dict[str, Any]]:
        body = {
            "rid": call.id,
            "input_ids": list(call.prompt_ids),
            "sampling_params": self._params(call, seed),
            "return_logprob": True,
            "logprob_start_len": -1,  # of the answer alone
            "top_logprobs_num": call.sampling.top_logprobs,
            "return_sampling_mask": _is_masked(call.sampling),
            "stream": True,
        }
        return GENERATE, body

    def read(self, call: Call, num_read: int, event: Mapping[str, Any]) -> StreamDelta:
        if "error" in event:
            error = event["error"]
            raise error_for_status(
                f"SGLang ended an answer with an error: {error['message']}", int(error.get("code", 500))
            )
        about = event["meta_info"]
        num_reported = int(about["completion_tokens"])

        def new(reported: Sequence[Any]) -> Sequence[Any]:
            """Of what is reported of the last tokens, or of all of them, that of those which were not read before."""
            return reported[max(0, num_read - (num_reported - len(reported))) :]

        sampling = call.sampling
        token_ids = tuple(int(token) for token in new(event.get("output_ids") or ()))
        logprobs = tuple(float(each[0]) for each in new(about.get("output_token_logprobs") or ()))
        top_logprobs: tuple[tuple[tuple[int, float], ...], ...] = ()
        if sampling.top_logprobs:  # reported as (logprob, id, text), the likeliest first
            reported = new(about.get("output_top_logprobs") or ())
            top_logprobs = tuple(
                tuple((int(token), float(logprob)) for logprob, token, *_ in each or ()) for each in reported
            )
        kept: tuple[tuple[int, ...] | None, ...] = ()
        if _is_masked(sampling):
            kept = tuple(kept_ids(mask) for mask in new(about.get("output_token_sampling_mask") or ()))
            logprobs = tuple(float(each) for each in new(about.get("output_token_sampling_logprobs") or ()))
            if len(kept) != len(token_ids):
                raise BackendError(f"SGLang reported {len(kept)} masks of {len(token_ids)} tokens")
        if len(logprobs) != len(token_ids):
            raise BackendError(f"SGLang reported {len(logprobs)} logprobs of {len(token_ids)} tokens")
        stop_reason, stop_string = _ending(about.get("finish_reason"))
        is_last = stop_reason is not None
        num_cached = int(about.get("cached_tokens") or 0) if is_last else 0
        return StreamDelta(
            token_ids=token_ids,
            logprobs=logprobs,
            top_logprobs=top_logprobs,
            kept_ids=kept,
            stop_reason=stop_reason,
            stop_string=stop_string,
            num_cached_tokens=num_cached,
        )

    async def score(self, http: httpx.AsyncClient, token_ids: Sequence[int]) -> tuple[float, ...]:
        body = {
            "input_ids": list(token_ids),
            "sampling_params": {"max_new_tokens": 1, "temperature": 0.0},
            "return_logprob": True,
            "logprob_start_len": 0,
        }
        reported = self.checked(await http.post(GENERATE, json=body))["meta_info"]["input_token_logprobs"]
        return tuple(float(each[0]) for each in reported[1:])

    async def pause(self, http: httpx.AsyncClient) -> None:
        # In this mode calls in flight are computed again when they go on, so that the cache can be emptied meanwhile.
        self.checked(await http.post("/pause_generation", json={"mode": "retract"}))

    async def resume(self, http: httpx.AsyncClient) -> None:
        self.checked(await http.post("/continue_generation", json={}))

    async def prepare(self, http: httpx.AsyncClient, version: int, weights: WeightSource) -> Load:
        """Raises UserError if the weights of the server are its own."""
        if self.files is None:
            raise UserError(
                f"version {version} cannot be published to the SGLang at {self.server.url}: it was connected to for "
                "sampling alone"
            )
        path = await asyncio.to_thread(self.files.write, version, weights)

        async def load() -> None:
            update = {"model_path": str(path.parent), "flush_cache": True, "weight_version": self.server.named(version)}
            self.checked(await http.post("/update_weights_from_disk", json=update))

        return load

    async def current_version(self, http: httpx.AsyncClient) -> int | None:
        if self.files is None:
            return None
        reported = self.checked(await http.get("/model_info")).get("weight_version")
        return None if reported is None else self.server.version(str(reported))

    def _params(self, call: Call, seed: int) -> dict[str, Any]:
        """The call's sampling in SGLang's words."""
        sampling = call.sampling
        params: dict[str, Any] = {
            **self.server.params(call),
            "top_k": sampling.top_k or -1,
            "sampling_seed": seed,
            "max_new_tokens": call.num_new_tokens(self.server.context_length),
            "ignore_eos": sampling.ignore_eos,
            "no_stop_trim": True,
            "skip_special_tokens": False,
        }
        if sampling.logit_bias:
            params["logit_bias"] = {str(token): value for token, value in sampling.logit_bias}
        if sampling.grammar is not None:
            params["ebnf"] = sampling.grammar  # its llguidance takes Lark by this name
        return params


def sglang_delivery(settings: SglangSettings, files: WeightFiles) -> Mapping[str, Any]:
    """What `SglangEngine.connect` needs so that weights reach that server by these files.

    Raises ConfigError where adapters alone are trained.
    """
    if files.adapter_config is not None:
        raise ConfigError(
            "calls in flight would keep an adapter that SGLang has replaced: leave model.lora unset with "
            "engine.kind=sglang, or train adapters with server or vllm"
        )
    return {"files": files, "is_deterministic": settings.deterministic}


def _is_masked(sampling: Sampling) -> bool:
    """The ids that tokens are drawn among are asked for, with the logprobs among them."""
    return sampling.truncates and not sampling.is_greedy


def _ending(finish: Mapping[str, Any] | None) -> tuple[StopReason | None, str | None]:
    """Why an answer ended, and the stop string that ended it. Raises what an abort with a status means."""
    if finish is None:
        return None, None
    kind, status, matched = finish.get("type"), finish.get("status_code"), finish.get("matched")
    if kind == "abort" and status is not None and status >= httpx.codes.BAD_REQUEST:
        raise error_for_status(f"SGLang ended an answer with {status}: {finish.get('message')}", int(status))
    if kind not in STOP_REASONS:
        raise BackendError(f"SGLang ended an answer with {finish!r}; look into its log")
    return STOP_REASONS[str(kind)], matched if isinstance(matched, str) else None


# ---- what is asked before the engine is there


def _check_started_with(url: str, info: Mapping[str, Any], *, is_deterministic: bool) -> None:
    version = str(info.get("version", ""))
    numbers = tuple(int(part) for part in version.split("+")[0].split(".")[:3] if part.isdigit())
    if numbers < VERSION:
        known = ".".join(map(str, VERSION))
        raise UserError(f"the SGLang at {url} is version {version!r}; {known} or newer is needed")
    if is_deterministic and not info.get("enable_deterministic_inference"):
        raise UserError(
            f"engine.deterministic is set, and the SGLang at {url} draws without the seeds of calls; start it with "
            "--enable-deterministic-inference"
        )


KIND = ServerKind(SglangEngine.connect, sglang_command, delivery=sglang_delivery)
