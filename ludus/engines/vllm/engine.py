"""A running vLLM server as an engine, through its token-in/token-out interface. Needs no torch.

Knows: vLLM's `/inference/v1/generate` (0.32; served with `--enable-scale-out`), its pause and its sleep.
Knows not: how weights are sent (`weights.py`), chat.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from ludus.engines.base import WeightSource
from ludus.engines.http.base import (
    PROBE_TEXT,
    STOP_REASONS,
    UNPUBLISHED,
    Ask,
    Load,
    Server,
    ServerProtocol,
    StreamDelta,
    bearer,
    check_same_ids,
    error_for_status,
    kept_ids,
    refusal,
)
from ludus.engines.http.client import HttpEngine
from ludus.engines.vllm.weights import Transfer
from ludus.errors import BackendError, LudusError, UserError
from ludus.text.tokenizer import Tokenizer
from ludus.types import Call, Sampling

logger = logging.getLogger(__name__)

GENERATE = "/inference/v1/generate"
OLDEST, NEWEST = (0, 31), (0, 32)
"""Releases whose interface this is: the first by its source, the second by runs with it."""
ANSWER_TIMEOUT_S = 120.0  # of the questions of `connect`; the first token of a server that has just started takes long
LEAST_TEMPERATURE = 0.01  # vLLM raises what lies between 0 and this, and says so in its log alone
SLEEPING = ("weights", "kv_cache")
"""What of a sleeping vLLM is woken by itself, in this order; the last also lets its calls go on."""
SLEEP_LEVEL = 1
"""Weights wait in the host's memory; keys and values are forgotten, and computed again for calls in flight. Level 2
keeps nothing, which saves copying weights twice: but a training step that fails would leave a server without weights,
and what vLLM has computed from them, or the trainer does not send, would be lost."""


class VllmEngine(HttpEngine):
    """Samples with a vLLM server."""

    protocol: VllmProtocol

    @classmethod
    def connect(
        cls,
        url: str,
        tokenizer: Tokenizer,
        *,
        api_key: str | None = None,
        transfer: Transfer | None = None,
        keep_kv: bool = True,
        shares_card: bool = False,
        stream_interval: int = 1,
    ) -> VllmEngine:
        """The engine behind `url`, such as http://localhost:8000. Blocks until the server has answered.

        tokenizer: that of the model which the server has.
        transfer: how new weights reach the server. None: its weights are its own, and all tokens carry version 0.
        keep_kv: sequences in flight keep their keys and values when weights are published.
        shares_card: a pause puts the server to sleep: its card is the trainer's then.
        stream_interval: tokens of an answer that come together, after its first.
        Raises UserError if the server has another tokenizer or its token-in/token-out interface is not served,
        BackendError if it cannot be reached.
        """
        url = url.rstrip("/").removesuffix("/v1")
        with VllmProtocol.asking(url, api_key, timeout_s=ANSWER_TIMEOUT_S) as ask:
            _check_version(ask("GET", "/version")["version"])
            card = ask("GET", "/v1/models")["data"][0]
            _check_tokenizer(ask, tokenizer)
            if transfer is not None:
                _let_go_on(ask)
            is_processed = _reports_processed_logprobs(ask)
        server = Server(url, int(card["max_model_len"]), tokenizer.stop_ids, bearer(api_key))
        how = (transfer, keep_kv, shares_card, stream_interval)
        protocol = VllmProtocol(server, card["id"], is_processed, *how)
        return cls(protocol, version=0 if transfer is None else UNPUBLISHED)


@dataclass(eq=False)
class VllmProtocol(ServerProtocol):
    """What a vLLM server says of itself, and how it is spoken to. Only the salt changes, with the weights, and what is
    asleep."""

    name = "vLLM"
    model: str
    reports_processed_logprobs: bool
    """Its logprobs are those of the distribution sampled from, not of the bare model."""
    transfer: Transfer | None = None
    """None: weights cannot be published."""
    keep_kv: bool = True
    shares_card: bool = False
    stream_interval: int = 1
    """Tokens of an answer that come together, after its first."""
    salt: str | None = None
    """Calls find the keys and values of calls with the same salt alone. None: nothing was published."""
    asleep: tuple[str, ...] = ()
    """What of SLEEPING is."""

    @property
    def holds_tokens(self) -> bool:
        return self.stream_interval > 1

    def check(self, call: Call) -> None:
        sampling = call.sampling
        if 0 < sampling.temperature < LEAST_TEMPERATURE:
            raise UserError(
                f"temperature={sampling.temperature} is raised to {LEAST_TEMPERATURE} by vLLM; ask for 0, or for more"
            )
        if not self.reports_processed_logprobs and not _is_models_own(sampling):
            raise UserError(
                "this vLLM reports the logprobs of the bare model, so only temperature 1 or 0 without top-p, top-k, "
                "min-p, penalties, biases and grammars can be recorded exactly; start it with "
                "--logprobs-mode processed_logprobs"
            )

    def request_for(self, call: Call, seed: int) -> tuple[str, dict[str, Any]]:
        body = {
            "request_id": call.id,
            **self._asked,
            "token_ids": list(call.prompt_ids),
            "sampling_params": self._params(call, seed),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return GENERATE, body

    def read(self, call: Call, num_read: int, event: Mapping[str, Any]) -> StreamDelta:
        if "error" in event:
            words, code = event["error"]["message"], event["error"]["code"]
            raise error_for_status(f"vLLM ended an answer with an error, {code}: {words}", int(code))
        details = (event.get("usage") or {}).get("prompt_tokens_details") or {}  # `--enable-prompt-tokens-details`
        num_cached_tokens = int(details.get("cached_tokens") or 0)
        choices = event.get("choices") or ()
        if not choices:  # the last event reports usage alone
            return StreamDelta(num_cached_tokens=num_cached_tokens)
        (choice,) = choices
        token_ids = tuple(choice.get("token_ids") or ())
        content = (choice.get("logprobs") or {}).get("content") or ()
        masks = choice.get("sampling_mask") or [None] * len(token_ids)
        if not len(token_ids) == len(content) == len(masks):
            raise BackendError(
                f"vLLM reported {len(content)} logprobs and {len(masks)} masks of {len(token_ids)} tokens"
            )
        finish_reason, stop = choice.get("finish_reason"), choice.get("stop_reason")
        if finish_reason is not None and finish_reason not in STOP_REASONS:
            raise BackendError(f"vLLM ended an answer with {finish_reason!r}; look into its log")
        return StreamDelta(
            token_ids=token_ids,
            logprobs=tuple(float(each["logprob"]) for each in content),
            top_logprobs=tuple(_likeliest(each["top_logprobs"], call.sampling.top_logprobs) for each in content),
            kept_ids=tuple(kept_ids(mask) for mask in masks),
            all_versions=None if self.transfer is None else self._versions(choice, num_read + len(token_ids)),
            stop_reason=None if finish_reason is None else STOP_REASONS[finish_reason],
            stop_string=stop if isinstance(stop, str) else None,
            num_cached_tokens=num_cached_tokens,
        )

    @classmethod
    def read_error(cls, response: httpx.Response) -> LudusError:
        url, status = response.url, response.status_code
        if url.path == GENERATE and status in (
            httpx.codes.FORBIDDEN,
            httpx.codes.NOT_FOUND,
            httpx.codes.METHOD_NOT_ALLOWED,
        ):
            return UserError(
                f"the server at {url.host}:{url.port} does not serve {GENERATE}; start vLLM with --enable-scale-out"
            )
        return refusal(cls.name, response)

    async def score(self, http: httpx.AsyncClient, token_ids: Sequence[int]) -> tuple[float, ...]:
        asked = {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0, "detokenize": False}
        body = {**self._asked, "token_ids": list(token_ids), "sampling_params": asked}
        rows = self.checked(await http.post(GENERATE, json=body))["prompt_logprobs"][1:]
        return tuple(float(row[str(token)]["logprob"]) for token, row in zip(token_ids[1:], rows, strict=True))

    async def pause(self, http: httpx.AsyncClient) -> None:
        await self._switch(http, "/pause", mode="keep")
        if self.shares_card:
            self.asleep = SLEEPING
            with self._taking_turns():
                await self._switch(http, "/sleep", level=str(SLEEP_LEVEL), mode="keep")

    async def resume(self, http: httpx.AsyncClient) -> None:
        for part in self.asleep:
            await self._wake(http, part)
        await self._switch(http, "/resume")

    @contextmanager
    def _taking_turns(self) -> Iterator[None]:
        """A refusal within the block says what it means for the trainer."""
        try:
            yield
        except LudusError as error:
            kind = UserError if isinstance(error, UserError) else BackendError
            raise kind(
                f"{error}; with engine.placement=shared the trainer and this vLLM have one card in turns: look into "
                "its log, start it with --enable-sleep-mode, or give it a card of its own (engine.placement=split)"
            ) from error

    async def _wake(self, http: httpx.AsyncClient, part: str) -> None:
        """Does nothing if it is awake. One part at a time: of several vLLM wakes none if one of them is awake."""
        if part in self.asleep:
            with self._taking_turns():
                await self._switch(http, "/wake_up", tags=part)
            self.asleep = tuple(each for each in self.asleep if each != part)

    async def prepare(self, http: httpx.AsyncClient, version: int, weights: WeightSource) -> Load:
        if self.transfer is None:
            raise UserError(
                f"version {version} cannot be published to the vLLM at {self.server.url}: its weights are its own; "
                "train with `ludus train` and engine.urls, or load new weights into vLLM yourself"
            )
        name = self.server.named(version)
        load = await self.transfer.prepare(http, version, weights, name)

        async def load_and_forget() -> None:
            await self._wake(http, "weights")  # pages for keys and values wait until nobody holds two sets of weights
            await load()
            self.salt = name
            if not self.keep_kv:
                await self._switch(http, "/reset_prefix_cache", reset_running_requests="true")

        return load_and_forget

    async def current_version(self, http: httpx.AsyncClient) -> int | None:
        if self.transfer is None:
            return None
        response = await http.get("/weight_info")
        if response.status_code == httpx.codes.NOT_FOUND:  # of 0.31
            return None
        return self.server.version(str(self.checked(response)["weight_version"]))

    def forget(self) -> None:
        self.salt, self.asleep = None, ()
        if self.transfer is not None:
            self.transfer.forget()

    async def _switch(self, http: httpx.AsyncClient, path: str, **query: str) -> None:
        response = await http.post(path, params=query)
        if response.status_code == httpx.codes.NOT_FOUND:
            raise UserError(
                f"the vLLM at {self.server.url} does not serve {path}; start it with VLLM_SERVER_DEV_MODE=1"
            )
        if response.is_error:
            raise self.read_error(response)

    def _versions(self, choice: Mapping[str, Any], num_tokens: int) -> tuple[int, ...] | None:
        """The version of every token, which vLLM reports with the last one. None: this is not the last."""
        spans = choice.get("weight_versions")
        if spans is None:
            return None
        versions: list[int] = []
        for span in spans:
            versions += [self.server.version(span["version"])] * (span["end"] - span["start"])
        if len(versions) != num_tokens:
            raise BackendError(f"vLLM reported the versions of {len(versions)} tokens, and {num_tokens} came")
        return tuple(versions)

    @property
    def _asked(self) -> dict[str, Any]:
        """Whose answer is wanted, and whose keys and values may be used."""
        adapter = None if self.transfer is None else self.transfer.model
        return {"model": adapter or self.model, **({} if self.salt is None else {"cache_salt": self.salt})}

    def _seed(self, call: Call, seed: int) -> int:
        """vLLM's generator begins anew with each request: what goes on with an answer must not draw the numbers again
        that its first tokens were drawn with."""
        if not call.num_answered:
            return seed
        digest = hashlib.blake2b(f"{seed}/{call.num_answered}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") % 2**62

    def _params(self, call: Call, seed: int) -> dict[str, Any]:
        """The call's sampling in vLLM's words; it adds nothing itself."""
        sampling = call.sampling
        params: dict[str, Any] = {
            **self.server.params(call),
            "top_k": sampling.top_k,
            "seed": self._seed(call, seed),
            "max_tokens": call.num_new_tokens(self.server.context_length),
            "ignore_eos": True,
            "logprobs": sampling.top_logprobs,
            "detokenize": bool(sampling.stop),
        }
        if self.holds_tokens:
            params["stream_interval"] = self.stream_interval
        if sampling.logit_bias:
            params["logit_bias"] = dict(sampling.logit_bias)
        if sampling.grammar is not None:
            params["structured_outputs"] = {"grammar": sampling.grammar}
        return params


def _is_models_own(sampling: Sampling) -> bool:
    """The tokens are drawn from the bare model's distribution, or are its likeliest."""
    free = not (sampling.penalises or sampling.logit_bias or sampling.grammar)
    return sampling.is_models_own or (free and sampling.is_greedy)


def _likeliest(reported: Sequence[Mapping[str, Any]], num: int) -> tuple[tuple[int, float], ...]:
    """The first `num`, the likeliest first; vLLM puts the sampled token before them."""
    pairs = {int(each["token_id"]): float(each["logprob"]) for each in reported}
    return tuple(sorted(pairs.items(), key=lambda pair: -pair[1])[:num])


# ---- what is asked before the engine is there


def _check_version(version: str) -> None:
    """Raises UserError for a vLLM whose interface is another; of one that was not tried the log tells."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    release = None if numbers is None else (int(numbers[1]), int(numbers[2]))
    if release is not None and release < OLDEST:
        raise UserError(f"this is vLLM {version}; Ludus works with {OLDEST[0]}.{OLDEST[1]} and newer: upgrade it")
    if release is None or release > NEWEST:
        logger.warning("vllm.untested version=%s tried=%d.%d-%d.%d", version, *OLDEST, *NEWEST)


def _check_tokenizer(ask: Ask, tokenizer: Tokenizer) -> None:
    """Raises UserError if the server reads a text as other tokens; one that loads no tokenizer is not asked."""
    try:
        found = ask("POST", "/tokenize", {"prompt": PROBE_TEXT, "add_special_tokens": False})
    except UserError:
        return
    check_same_ids(found["tokens"], tokenizer)


def _let_go_on(ask: Ask) -> None:
    """Wakes a server that sleeps or is paused, as a run that is killed leaves it; it would answer nothing."""
    try:
        is_held = ask("GET", "/is_sleeping")["is_sleeping"]
    except UserError:  # without its development mode nobody could pause it
        return
    if is_held:
        for part in SLEEPING:
            ask("POST", f"/wake_up?tags={part}")


def _reports_processed_logprobs(ask: Ask) -> bool:
    """Whether a token that is the only one allowed has the logprob 0, not the bare model's."""
    only = 7  # any id will do that no model is certain of after itself
    asked = {"max_tokens": 1, "logprobs": 0, "allowed_token_ids": [only], "detokenize": False}
    answer = ask("POST", GENERATE, {"token_ids": [only], "sampling_params": asked})
    logprob = float(answer["choices"][0]["logprobs"]["content"][0]["logprob"])
    if logprob > 0:
        raise UserError(
            f"vLLM reports logits, {logprob}, for logprobs; start it with --logprobs-mode processed_logprobs"
        )
    return logprob == 0.0
