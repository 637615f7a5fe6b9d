"""A server that samples, as an engine: one loop, one pool of connections, the calls in flight. Needs no torch.

Knows: the Engine protocol, streams of events, publishing.  Knows not: any server's format (`ServerProtocol`), chat.
Its requests run on a thread with one event loop and one pool of connections, whichever loop asks. A call ends early by
closing its connection, on which the server stops sampling; the tokens that had come are its answer.

Invariant: where the server does not report versions, every token that came before weights are loaded has the version of
before, and every one after it the new one: sampling pauses while they are loaded.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx

from ludus.engines.base import OnTokens, WeightSource, check_call_id, check_length, check_version
from ludus.engines.http.base import (
    CONNECT_TIMEOUT_S,
    UNPUBLISHED,
    ServerProtocol,
    StreamDelta,
    direct,
    failing_as_backend,
)
from ludus.errors import BackendError, LudusError, UserError
from ludus.http.sse import DONE, coming_data
from ludus.types import Call, EngineStats, Sampled, StopReason, TokenChunk

logger = logging.getLogger(__name__)
ReturnT = TypeVar("ReturnT")

HEALTH = "/health"  # of all kinds of servers
SEED_BITS = 48  # as the local engine draws them: exact in JSON
# Tokens that were sampled before a pause, or a publish, come on other connections than its confirmation.
SETTLE_S = 0.05
# What still speaks to the server when the engine is closed, such as one that lets a paused server go on.
CLOSE_S = 2.0


class HttpEngine:
    """Samples with the server that `protocol` speaks to. Safe to use from several event loops and threads at once."""

    shares_weights = False

    def __init__(self, protocol: ServerProtocol, *, version: int = 0) -> None:
        """version: of the weights that the server has."""
        self.protocol = protocol
        self._server = protocol.server
        self.context_length = protocol.server.context_length
        self._version = version
        self._seeds = random.Random()
        self._running: dict[str, _Running] = {}
        self._num_calls = self._num_sampled = self._num_prompt = self._num_cached = 0
        self._is_paused = self._is_closed = False
        self._unfinished: int | None = None
        """The version whose publish has begun and not ended: the server may have it. None: there is none."""
        self._has_published = False  # until then its weights are somebody else's matter
        self._slept_at: float | None = None
        """When it was put to sleep, by the clock of its loop. None: it is awake."""
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        # Tokens may be minutes away while others are served; a server that is gone closes the connection.
        timeout = httpx.Timeout(None, connect=CONNECT_TIMEOUT_S)
        url, headers = self._server.url, dict(self._server.headers)
        self._http = httpx.AsyncClient(base_url=url, headers=headers, limits=limits, timeout=timeout, **direct())
        self._publishing = asyncio.Lock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="ludus-http-engine", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._server.url}, version={self._version}, running={len(self._running)})"

    @property
    def shares_card(self) -> bool:
        return self.protocol.shares_card

    async def generate(self, call: Call, on_tokens: OnTokens | None = None) -> Sampled:
        """The sampled answer. Raises UserError for what cannot be recorded exactly, with the setting that helps."""
        check_length(call.prompt_ids, self.context_length)
        self.protocol.check(call)
        loop = asyncio.get_running_loop()

        def deliver(chunk: TokenChunk) -> None:
            if on_tokens is not None and not loop.is_closed():
                loop.call_soon_threadsafe(on_tokens, chunk)

        return await self._on_own_loop(self._answer(call, deliver))

    async def abort(self, call_id: str) -> None:
        async def end() -> None:
            if (running := self._running.get(call_id)) is not None:
                running.end()

        if not self._is_closed:
            await self._on_own_loop(end())  # behind the call itself, which may be on its way there

    async def publish(self, version: int, weights: WeightSource) -> None:
        """Sample with `weights` from now on; those of this process that a trainer shares are written too.

        Raises UserError if the server takes no weights. Calls in flight go on with their tokens. A publish that failed
        or was cancelled may be repeated: what the server has loaded meanwhile is not loaded again.
        """
        await self._on_own_loop(self._publish(version, weights))

    async def pause(self) -> None:
        await self._on_own_loop(self._pause())
        self._is_paused = True

    async def resume(self) -> None:
        await self._on_own_loop(self._resume())
        self._is_paused = False

    async def score(self, token_ids: Sequence[int]) -> tuple[float, ...]:
        async def scored() -> tuple[float, ...]:
            with self._failing():
                return await self.protocol.score(self._http, token_ids)

        return await self._on_own_loop(scored())

    def stats(self) -> EngineStats:
        return EngineStats(
            version=self._version,
            num_running=len(self._running),
            num_calls=self._num_calls,
            num_sampled_tokens=self._num_sampled,
            num_prefilled_tokens=self._num_prompt - self._num_cached,
            num_cached_tokens=self._num_cached,
        )

    async def check(self) -> None:
        await self._on_own_loop(self._check())

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True

        async def end_all() -> None:
            for running in tuple(self._running.values()):
                running.end()
                await running.ended.wait()
            left = asyncio.all_tasks() - {asyncio.current_task()}
            for task in left:
                task.cancel()
            if left:
                await asyncio.wait(left, timeout=CLOSE_S)
            await self._http.aclose()
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(end_all(), self._loop))
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join)
        self._loop.close()

    # ---- on the engine's own loop

    def _failing(self) -> AbstractContextManager[None]:
        return failing_as_backend(self.protocol.name, self._server.url)

    async def _on_own_loop(self, work: Coroutine[Any, Any, ReturnT]) -> ReturnT:
        if self._is_closed:
            work.close()
        self._check_open()
        try:
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))
        except (asyncio.CancelledError, RuntimeError):
            task = asyncio.current_task()
            if task is None or not task.cancelling():
                self._check_open()  # what it did when it was closed
            raise

    def _check_open(self) -> None:
        """Raises BackendError once the engine is closed."""
        if self._is_closed:
            raise BackendError("the engine is closed; open a new one")

    async def _answer(self, call: Call, deliver: Callable[[TokenChunk], None]) -> Sampled:
        check_call_id(call.id, self._running)
        seed = self._seeds.getrandbits(SEED_BITS) if call.sampling.seed is None else call.sampling.seed
        running = self._running[call.id] = _Running(call, seed, self._loop.time(), call.deadline_at, self._version)
        self._num_calls += 1
        self._num_prompt += len(call.prompt_ids)
        try:
            deadline_at = running.deadline_at if self._slept_at is None else None
            async with asyncio.timeout_at(deadline_at) as running.until:
                async for chunk in self._chunks(running):
                    deliver(chunk)
        except TimeoutError:
            running.stop_reason = "abort"
        finally:
            del self._running[call.id]
            running.ended.set()
        return running.sampled()

    async def _chunks(self, running: _Running) -> AsyncIterator[TokenChunk]:
        """The tokens as they come. Raises BackendError if the server ends the answer without saying why it ended."""
        path, body = self.protocol.request_for(running.call, running.seed)
        with self._failing():
            async with self._http.stream("POST", path, json=body) as response:
                if response.is_error:
                    await response.aread()
                    raise self.protocol.read_error(response)
                async for data in coming_data(response):
                    if data == DONE:
                        continue
                    event = self.protocol.read(running.call, len(running.token_ids), json.loads(data))
                    chunk = running.take(event, self._version, is_held=self.protocol.holds_tokens)
                    self._num_sampled += len(chunk.token_ids)
                    if chunk.token_ids:
                        yield chunk
        self._num_cached += running.num_cached_tokens
        if running.stop_reason is None:
            raise BackendError(
                f"the {self.protocol.name} at {self._server.url} ended an answer in the middle; look into its log"
            )

    async def _check(self) -> None:
        with self._failing():
            response = await self._http.get(HEALTH)
        if response.is_error:
            raise BackendError(
                f"the {self.protocol.name} at {self._server.url} is not well: {HEALTH} answered {response.status_code}"
            )
        await self._check_weights()

    async def _check_weights(self) -> None:
        """Notes if the weights that were published are gone: the server was started again at its URL."""
        before = self._version
        # while it falls asleep or wakes, a server answers for seconds nothing but whether it is well
        if not self._has_published or self._publishing.locked() or self._slept_at is not None:
            return
        try:
            with self._failing():
                held = await self.protocol.current_version(self._http)
        except UserError as error:  # it took this very question before: another server stands there, or another key
            raise BackendError(str(error)) from error
        # what was published meanwhile is newer than the answer
        if held in (None, before, self._unfinished) or self._version != before or self._publishing.locked():
            return
        logger.warning("engine.weights_lost engine=%r held=%s", self, held)
        self._version = UNPUBLISHED
        self.protocol.forget()

    async def _pause(self) -> None:
        if self.protocol.shares_card:
            self._stop_clocks()
        try:
            with self._failing():
                await self.protocol.pause(self._http)
        except BaseException:
            self._start_clocks()
            raise
        await asyncio.sleep(SETTLE_S)

    async def _resume(self) -> None:
        with self._failing():
            await self.protocol.resume(self._http)
        self._start_clocks()

    def _stop_clocks(self) -> None:
        """The trainer's turn, which may take minutes, is not counted among the time of any call."""
        self._slept_at = self._loop.time()
        for running in self._running.values():
            running.stop_clock(self._slept_at)

    def _start_clocks(self) -> None:
        slept_at, self._slept_at = self._slept_at, None
        if slept_at is not None:
            for running in self._running.values():
                running.start_clock(self._loop.time() - max(slept_at, running.began_at))

    async def _publish(self, version: int, weights: WeightSource) -> None:
        async with self._publishing:
            is_again = version == self._unfinished
            if not is_again:
                check_version(version, self._version)
            self._unfinished = version
            if is_again and await self._has(version):
                if not self._stays_as_it_is:
                    await self._resume()
            else:
                await self._load(version, weights, is_again=is_again)
            self._version, self._has_published = version, True
            await asyncio.to_thread(weights.copy_into_shared)
            self._unfinished = None

    async def _load(self, version: int, weights: WeightSource, *, is_again: bool) -> None:
        """is_again: this was tried before, and the server may still be at it, or refuse what it has just finished."""
        with self._failing():
            load = await self.protocol.prepare(self._http, version, weights)
        is_held = self._stays_as_it_is
        try:
            if not is_held:
                await self._pause()
            try:
                with self._failing():
                    await load()
            except LudusError:
                if not is_again or not await self._has(version):
                    raise
            if self.protocol.reports_versions:
                await asyncio.sleep(SETTLE_S)
            self._version = version
        finally:
            if not is_held:
                await self._resume()

    async def _has(self, version: int) -> bool:
        """Whether the server has loaded it, whatever became of its answer."""
        with self._failing():
            return self._version == version or await self.protocol.current_version(self._http) == version

    @property
    def _stays_as_it_is(self) -> bool:
        """A publish neither pauses nor resumes: whoever paused the engine lets it go on."""
        return self._is_paused or self.protocol.reports_versions


@dataclass(eq=False)
class _Running:
    """One call in flight and what has come of it. Used on the engine's loop alone."""

    call: Call
    seed: int
    began_at: float
    deadline_at: float | None
    """That of the call, later by as long as the server has slept meanwhile."""
    version: int
    """Of the weights when its tokens came last."""
    until: asyncio.Timeout | None = None
    """Ends the reading. None: it has not begun."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    top_logprobs: list[tuple[tuple[int, float], ...]] = field(default_factory=list)
    kept_ids: list[tuple[int, ...] | None] = field(default_factory=list)
    stop_reason: StopReason | None = None
    stop_string: str | None = None
    num_cached_tokens: int = 0
    prefill_s: float | None = None

    def end(self) -> None:
        """Stop reading at once, with what has come."""
        if self.until is not None and not self.until.expired():
            self.until.reschedule(asyncio.get_running_loop().time())

    def stop_clock(self, now: float) -> None:
        """Its time does not run out until `start_clock`; if it is over already, nothing changes."""
        if self.until is not None and (self.until.when() or now) > now:
            self.until.reschedule(None)

    def start_clock(self, stood_s: float) -> None:
        """stood_s: how long the clock stood still."""
        if self.deadline_at is not None:
            self.deadline_at += stood_s
            if self.until is not None and self.until.when() is None:
                self.until.reschedule(self.deadline_at)

    def take(self, piece: StreamDelta, version: int, *, is_held: bool) -> TokenChunk:
        """The tokens of one event.

        version: of the weights now: that of the tokens, if the server does not say theirs.  is_held: some may have
        waited there since the weights before, so that all of them are taken for tokens of those.
        """
        of_event = self.version if is_held and self.token_ids else version
        versions = (of_event,) * len(piece.token_ids) if piece.versions is None else piece.versions
        if piece.token_ids:
            self.version = version
        chunk = TokenChunk(piece.token_ids, piece.logprobs, versions)
        self.token_ids += piece.token_ids
        self.logprobs += piece.logprobs
        self.versions += versions
        self.top_logprobs += piece.top_logprobs
        self.kept_ids += piece.kept_ids
        self.num_cached_tokens += piece.num_cached_tokens
        if piece.all_versions is not None:
            self.versions = list(piece.all_versions)
        if piece.stop_reason is not None:
            self.stop_reason, self.stop_string = piece.stop_reason, piece.stop_string
            self.prefill_s = piece.prefill_s
        return chunk

    def sampled(self) -> Sampled:
        assert self.stop_reason is not None, "a call without a stop reason still runs"
        sampling, num = self.call.sampling, len(self.token_ids)
        # of an answer that was cut off, not reported of all
        tops, kept_ids = tuple(self.top_logprobs), tuple(self.kept_ids)
        return Sampled(
            token_ids=tuple(self.token_ids),
            logprobs=tuple(self.logprobs),
            versions=tuple(self.versions),
            stop_reason=self.stop_reason,
            seed=self.seed,
            stop_string=self.stop_string,
            top_logprobs=tops + ((),) * (num - len(tops)) if sampling.top_logprobs else (),
            num_cached_tokens=self.num_cached_tokens,
            kept_ids=kept_ids + (None,) * (num - len(kept_ids)) if sampling.cuts else (),
            prefill_s=self.prefill_s,
        )
