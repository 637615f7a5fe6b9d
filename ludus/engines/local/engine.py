"""The local engine behind the Engine protocol: a thread that steps, and event loops that wait for it.

Knows: the engine core, the compute lease, event loops.  Knows not: chat, sessions, HTTP.
Invariants: the core is touched by the engine's thread alone; a step holds the lease and nothing else does; every
waiting caller gets an answer or an error, also when a step or the whole engine fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ludus.engines.base import OnTokens, WeightSource, check_version
from ludus.engines.kind import LocalKind
from ludus.engines.lease import ComputeLease, release_workers
from ludus.engines.local.core import CallProgress, EngineCore
from ludus.engines.local.kernels.select import choose_kernel
from ludus.engines.local.settings import InferenceSettings
from ludus.errors import BackendError, LudusError
from ludus.models.device import use_device
from ludus.models.load import LoadedModel
from ludus.text.tokenizer import Tokenizer
from ludus.types import Call, EngineStats, Sampled

_log = logging.getLogger(__name__)
# Seeds that the engine draws stay exact in JSON and in SQLite.
_SEED_BITS = 48
T = TypeVar("T")


class LocalEngine:
    """Samples with the very tensors that a trainer in the same process trains.

    lease: held during every step, and during nothing else.  seed: of the seeds that calls without one get.
    Raises UserError if `settings` leave no room for one page, BackendError if a kernel was asked for that cannot be.
    """

    shares_weights = True
    shares_card = False  # in one process trainer and engine have their turns by the lease

    def __init__(
        self, model: LoadedModel, tokenizer: Tokenizer, settings: InferenceSettings, *, lease: ComputeLease, seed: int
    ) -> None:
        kernel = choose_kernel(settings.kernels, model.head_weight, head_dim=model.config.head_dim)
        self._core = EngineCore(model, tokenizer, settings, kernel)
        self.context_length = self._core.context_length
        """The model's own, or what fits into `kv_bytes` if that is less."""
        self._lease = lease
        self._random = random.Random(seed)
        self._changed = threading.Condition()
        self._commands: deque[_Command] = deque()
        self._waiters: dict[str, _Waiter] = {}
        self._compiling: set[str] = set()
        """Calls whose grammars are being compiled, and those among them that were aborted."""
        self._aborted: set[str] = set()
        self._is_paused = False
        self._ended: BackendError | None = None
        self._device = model.head_weight.device
        release_workers()  # those with which this thread has loaded the model
        self._thread = threading.Thread(target=self._run, name="ludus-engine", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        state = "paused" if self._is_paused else "open" if self._ended is None else str(self._ended)
        return f"<LocalEngine {state} {self._core!r}>"

    async def generate(self, call: Call, on_tokens: OnTokens | None = None) -> Sampled:
        if call.sampling.grammar is None:
            self._core.check(call)
        else:
            await self._compile(call)
        waiter = _Waiter(asyncio.get_running_loop().create_future(), on_tokens)
        self._submit(_Command(lambda: self._add(call, waiter), waiter.fail))
        if call.id in self._aborted:
            self._aborted.discard(call.id)
            self._submit(_Command(lambda: self._abort(call.id)))
        try:
            sampled: Sampled = await waiter.future
        except BaseException:  # cancelled, or refused by `on_tokens`: nobody waits for the rest
            self._drop(call.id, waiter)
            raise
        return sampled

    async def _compile(self, call: Call) -> None:
        """A large grammar takes a while, and this loop has others to serve; an abort meanwhile is kept for later."""
        self._compiling.add(call.id)
        try:
            await asyncio.to_thread(self._core.check, call)
        except BaseException:
            self._aborted.discard(call.id)
            raise
        finally:
            self._compiling.discard(call.id)

    async def abort(self, call_id: str) -> None:
        if call_id in self._compiling:
            self._aborted.add(call_id)
        await self._ask(lambda: self._abort(call_id))

    async def publish(self, version: int, weights: WeightSource) -> None:
        """Sample with `weights` from the next step on. The caller must not hold the lease: the engine takes it.

        If the weights cannot be written as a whole, the engine ends: it never samples from half of them.
        """
        await self._ask(lambda: self._publish(version, weights), needs_turn=True)

    async def pause(self) -> None:
        await self._ask(lambda: self._set_paused(True))

    async def resume(self) -> None:
        await self._ask(lambda: self._set_paused(False))

    async def score(self, token_ids: Sequence[int]) -> tuple[float, ...]:
        self._core.check_scored(token_ids)
        return await self._ask(lambda: self._score(token_ids), needs_turn=True)

    def stats(self) -> EngineStats:
        return self._core.stats()

    async def check(self) -> None:
        """Does not wait for a step: whether the engine has ended is known at once."""
        if self._ended is not None:
            raise self._ended

    async def wait_ended(self) -> None:
        """Raises BackendError once the engine can serve nothing any more, by its own fault or because it was closed."""
        await asyncio.to_thread(self._thread.join)
        assert self._ended is not None, "the engine's thread ends with the engine"
        raise self._ended

    async def close(self) -> None:
        with contextlib.suppress(BackendError):  # closed or dead already
            await self._ask(self._close)
        await asyncio.to_thread(self._thread.join)

    # -- what callers do, on any thread

    async def _ask(self, action: Callable[[], T], *, needs_turn: bool = False) -> T:
        """The result of `action`, run by the engine's thread between two steps."""
        waiter = _Waiter(asyncio.get_running_loop().create_future())
        self._submit(_Command(lambda: waiter.resolve(action()), waiter.fail, needs_turn))
        result: T = await waiter.future
        return result

    def _submit(self, command: _Command) -> None:
        with self._changed:
            if self._ended is not None:
                raise self._ended
            self._commands.append(command)
            self._changed.notify()
        if not command.needs_turn:
            self._lease.nudge()

    def _drop(self, call_id: str, waiter: _Waiter) -> None:
        def drop() -> None:
            if self._waiters.get(call_id) is waiter:
                del self._waiters[call_id]
                self._core.abort(call_id)

        with contextlib.suppress(BackendError):  # it has ended: nothing runs any more
            self._submit(_Command(drop))

    # -- what the engine's thread does

    def _run(self) -> None:
        try:
            use_device(self._device)
            while self._ended is None:
                self._run_commands(self._next_commands())
                self._expire(time.monotonic())
                if self._has_work:
                    self._step()
        except BaseException as error:  # the boundary of the thread: whoever waits must learn of it
            _log.exception("engine.died")
            self._end(BackendError(f"the engine has died of {type(error).__name__}: {error}; open a new one"))

    @property
    def _has_work(self) -> bool:
        return self._ended is None and not self._is_paused and not self._core.is_idle

    def _next_commands(self) -> list[_Command]:
        """Returns at once when there is work, else when there is a command or a deadline is over."""
        with self._changed:
            if not self._has_work:
                deadlines = [waiter.deadline_at for waiter in self._waiters.values() if waiter.deadline_at is not None]
                timeout_s = max(0.0, min(deadlines) - time.monotonic()) if deadlines else None
                self._changed.wait_for(lambda: bool(self._commands), timeout=timeout_s)
            commands = list(self._commands)
            self._commands.clear()
            return commands

    def _run_what_needs_no_turn(self) -> float | None:
        """While others compute: new calls, aborts and deadlines. The seconds to the next deadline."""
        with self._changed:
            commands = [each for each in self._commands if not each.needs_turn]
            left = [each for each in self._commands if each.needs_turn]
            self._commands.clear()
            self._commands.extend(left)
        self._run_commands(commands)
        now = time.monotonic()
        self._expire(now)
        deadlines = [waiter.deadline_at for waiter in self._waiters.values() if waiter.deadline_at is not None]
        return max(0.0, min(deadlines) - now) if deadlines else None

    def _run_commands(self, commands: list[_Command]) -> None:
        for command in commands:
            if self._ended is not None:
                command.fail(self._ended)
                continue
            try:
                command.run()
            except LudusError as error:
                command.fail(error)
            except Exception as error:  # the caller's own code (weights, tokenizer) failed; it is notified
                _log.exception("engine.command_failed")
                command.fail(BackendError(f"the engine could not do it: {type(error).__name__}: {error}"))

    def _step(self) -> None:
        try:
            with self._lease.hold("engine", self._run_what_needs_no_turn, is_read_only=True):
                progress = self._core.step() if self._has_work else []
        except Exception as error:  # one bad step must not end the engine: its calls fail, the next ones are served
            _log.exception("engine.step_failed")
            self._core.fail_all()
            self._fail_waiters(BackendError(f"a step of the engine failed: {type(error).__name__}: {error}; try again"))
        else:
            self._deliver(progress)

    def _add(self, call: Call, waiter: _Waiter) -> None:
        seed = call.sampling.seed
        self._core.add(call, self._random.getrandbits(_SEED_BITS) if seed is None else seed)
        waiter.deadline_at = call.deadline_at
        self._waiters[call.id] = waiter

    def _abort(self, call_id: str) -> None:
        progress = self._core.abort(call_id)
        if progress is not None:
            self._deliver([progress])

    def _publish(self, version: int, weights: WeightSource) -> None:
        check_version(version, self._core.version)
        try:
            with self._lease.hold("engine", self._run_what_needs_no_turn):
                self._core.publish(version, weights.copy_into_shared)
        except Exception as error:
            failure = BackendError(f"publishing version {version} failed half-way ({error}); open a new engine")
            self._end(failure)
            raise failure from error

    def _set_paused(self, is_paused: bool) -> None:
        self._is_paused = is_paused

    def _score(self, token_ids: Sequence[int]) -> tuple[float, ...]:
        with self._lease.hold("engine", self._run_what_needs_no_turn, is_read_only=True):
            return self._core.score(token_ids)

    def _close(self) -> None:
        for call_id in tuple(self._waiters):
            self._abort(call_id)
        self._end(BackendError("the engine is closed; open a new one"))

    def _end(self, reason: BackendError) -> None:
        """Nothing is served from now on, and everybody who waits is notified."""
        with self._changed:
            self._ended = reason
            commands = list(self._commands)
            self._commands.clear()
        for command in commands:
            command.fail(reason)
        self._fail_waiters(reason)
        self._core.free()

    def _fail_waiters(self, error: BackendError) -> None:
        for waiter in self._waiters.values():
            waiter.fail(error)
        self._waiters.clear()

    def _expire(self, now: float) -> None:
        for call_id, waiter in tuple(self._waiters.items()):
            if waiter.deadline_at is not None and waiter.deadline_at <= now:
                self._abort(call_id)

    def _deliver(self, progress: list[CallProgress]) -> None:
        """Hand tokens and answers to the loops that wait for them; one wake-up per loop."""
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Waiter, CallProgress]]] = {}
        for item in progress:
            waiter = self._waiters[item.call_id] if item.answer is None else self._waiters.pop(item.call_id)
            if item.answer is not None or waiter.on_tokens is not None:
                by_loop.setdefault(waiter.future.get_loop(), []).append((waiter, item))
        for loop, items in by_loop.items():
            if not _call_on(loop, functools.partial(_hand_over, items)):
                for _, item in items:
                    self._waiters.pop(item.call_id, None)
                    self._core.abort(item.call_id)


@dataclass(frozen=True, slots=True)
class _Command:
    """Something for the engine's thread to do between two steps; `fail` notifies its caller that it was not done."""

    run: Callable[[], None]
    fail: Callable[[BaseException], None] = lambda _: None
    needs_turn: bool = False
    """It takes the lease. What does not is done while others compute."""


@dataclass(slots=True, eq=False)
class _Waiter:
    """A future on its own event loop."""

    future: asyncio.Future[Any]
    on_tokens: OnTokens | None = None
    deadline_at: float | None = None

    def resolve(self, result: object) -> None:
        _call_on(self.future.get_loop(), lambda: None if self.future.done() else self.future.set_result(result))

    def fail(self, error: BaseException) -> None:
        _call_on(self.future.get_loop(), lambda: None if self.future.done() else self.future.set_exception(error))


def _hand_over(items: list[tuple[_Waiter, CallProgress]]) -> None:
    """Runs on the waiters' loop."""
    for waiter, progress in items:
        if waiter.future.done():
            continue
        if waiter.on_tokens is not None and (chunk := progress.chunk) is not None:
            try:
                waiter.on_tokens(chunk)
            except Exception as error:  # the listener's own failure: it goes to whoever awaits `generate`
                waiter.future.set_exception(error)
                continue
        if progress.answer is not None:
            waiter.future.set_result(progress.answer)


def _call_on(loop: asyncio.AbstractEventLoop, action: Callable[[], None]) -> bool:
    """Whether `loop` still took `action`; a closed loop has nobody who waits."""
    try:
        loop.call_soon_threadsafe(action)
    except RuntimeError:
        return False
    return True


KIND = LocalKind(LocalEngine)
