"""Connects a queue agent's two queues with the model: takes observations, and returns bundles of answers in order.

Knows: queues, the session's token API.  Knows not: agents, environments, rewards.
Invariant: the n-th item of the action queue answers the n-th observation, whichever finished first; if the session
refuses a request, the error is raised where its answer is awaited.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from types import TracebackType
from typing import Any

from ludus.compat.realhf.generation import BundledGenerationOutputs, GenerationHyperparameters
from ludus.episodes.session import Session
from ludus.errors import UserError
from ludus.types import ChatRequest

_Observation = tuple[Hashable, tuple[int, ...], GenerationHyperparameters]


class ObservationQueue(asyncio.Queue[Any]):
    """Accepts only `(qid, token_ids, gconfig)`, and stores nothing, as each is sent to the model at once."""

    def __init__(self, ask: Callable[[_Observation], None]) -> None:
        super().__init__()
        self._ask = ask

    def put_nowait(self, item: Any) -> None:
        self._ask(_read(item))


class ActionQueue(asyncio.Queue[Any]):
    """Holds finished tasks; `get` returns the `BundledGenerationOutputs` of each, or raises its error."""

    def get_nowait(self) -> Any:
        return super().get_nowait().result()


class Inference:
    """Answers the observations of one episode. Use as an async context manager; leaving it aborts what still runs."""

    def __init__(self, session: Session) -> None:
        self.obs_queue = ObservationQueue(self._ask)
        self.act_queue = ActionQueue()
        self._session = session
        self._asked: asyncio.Queue[asyncio.Task[BundledGenerationOutputs]] = asyncio.Queue()
        self._tasks: set[asyncio.Task[Any]] = set()

    def __repr__(self) -> str:
        return f"Inference({self._session!r}, tasks={len(self._tasks)})"

    async def __aenter__(self) -> Inference:
        self._start(self._give())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _ask(self, observation: _Observation) -> None:
        self._asked.put_nowait(self._start(self._answer(*observation)))

    async def _give(self) -> None:
        while True:
            task = await self._asked.get()
            await asyncio.wait({task})
            task.exception()  # mark it as retrieved, so that asyncio does not warn
            self.act_queue.put_nowait(task)

    async def _answer(
        self, qid: Hashable, token_ids: tuple[int, ...], gconfig: GenerationHyperparameters
    ) -> BundledGenerationOutputs:
        sampling = gconfig.sampling(self._session.sampling)
        turns = await self._session.complete(ChatRequest(messages=(), prompt=token_ids, sampling=sampling, n=gconfig.n))
        return BundledGenerationOutputs.from_turns(qid, token_ids, turns)


def _read(item: Any) -> _Observation:
    """The observation. Raises UserError, in the agent's own call of `put`, if the item is none."""
    if not isinstance(item, Sequence) or isinstance(item, str | bytes) or len(item) != 3:
        raise UserError(f"obs_queue got {item!r:.200}; put (qid, token_ids, gconfig)")
    qid, token_ids, gconfig = item
    try:
        ids = tuple(map(int, token_ids))
    except (TypeError, ValueError):
        raise UserError(f"the token ids of an observation must be integers, got {token_ids!r:.200}") from None
    if not ids:
        raise UserError("an observation needs at least one token id, got none")
    return qid, ids, GenerationHyperparameters.of(gconfig)
