"""Measures waiting while a long row is trained in the same process: for the next token, and for the end of an abort.

Knows: engine, trainer, the lease they share.  Knows not: pairs, how the trainer gives way.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ludus.algorithms.pack import Batch, pack
from ludus.checks.bench.ceiling import finish
from ludus.checks.bench.sample import Arrivals, Count
from ludus.checks.bench.train import sequence_of
from ludus.checks.bench.workloads import RowWork
from ludus.engines.lease import ComputeLease
from ludus.engines.local.engine import LocalEngine
from ludus.engines.local.settings import InferenceSettings
from ludus.errors import BackendError
from ludus.models.load import load_model
from ludus.text.chat import ChatText
from ludus.trainer.step import ModelTrainer
from ludus.types import Call, Sampling, TokenChunk


class OneTurnARow(ComputeLease):
    """The trainer keeps its turn to the end of a row, and aborts wait for theirs."""

    @contextmanager
    def hold(
        self, name: str, meanwhile: Callable[[], float | None] | None = None, *, is_read_only: bool = False
    ) -> Iterator[None]:
        with super().hold(name, is_read_only=is_read_only):
            yield

    def give_way(self) -> None:
        pass


async def measure_row(work: RowWork) -> dict[str, Any]:
    """Milliseconds from token to token and of an abort, median and longest; tokens a second of training, alone and
    beside the answers."""
    config = work.config(f"trainer.row_tokens={len(work.row)}")
    model = load_model(config.model, seed=config.seed)
    lease = ComputeLease() if work.gives_way else OneTurnARow()
    settings = config.engine if isinstance(config.engine, InferenceSettings) else InferenceSettings()
    engine = LocalEngine(model, ChatText.load(model.folder).tokenizer, settings, lease=lease, seed=work.seed)
    trainer = ModelTrainer(model, config.trainer, config.algorithm, lease=lease)
    batch = Batch.of(pack([sequence_of(work.row, 1, 1)], row_tokens=len(work.row)))

    def train(num_rows: int) -> float:
        started_at = time.perf_counter()
        for _ in range(num_rows):
            trainer.forward_backward(batch)
        finish(model.head_weight.device)
        taken_s = time.perf_counter() - started_at
        trainer.optimizer.forget_gradients()
        return num_rows * len(work.row) / taken_s

    try:
        await asyncio.to_thread(train, 1)  # warm-up
        alone = await asyncio.to_thread(train, work.rows)
        begun, trained = asyncio.Event(), asyncio.Event()
        waiting = [asyncio.create_task(_sample(engine, work, begun, trained))]
        await _until(begun, waiting[0])
        waiting.append(asyncio.create_task(_abort(engine, work, trained)))
        beside = await asyncio.to_thread(train, work.rows)
        trained.set()
        gaps_s, aborts_s = await asyncio.gather(*waiting)
    finally:
        await engine.close()
    if not gaps_s or not aborts_s:
        raise BackendError(
            f"{len(gaps_s)} tokens and {len(aborts_s)} aborts came while {work.rows} rows were trained; train more"
        )
    return {"rows": _rows(gaps_s, aborts_s, alone=alone, beside=beside)}


def _rows(gaps_s: list[float], aborts_s: list[float], *, alone: float, beside: float) -> list[dict[str, Any]]:
    waits = (("from token to token", gaps_s, None), ("an abort", aborts_s, len(aborts_s)))
    return [
        *(
            {"what": f"{what}, {name}, ms", "ms": choose(times_s) * 1e3, "aborts": number}
            for what, times_s, number in waits
            for name, choose in (("median", statistics.median), ("longest", max))
        ),
        {"what": "training alone, tokens/s", "tokens_per_s": alone},
        {"what": "training beside the answers, tokens/s", "tokens_per_s": beside},
    ]


async def _sample(engine: LocalEngine, work: RowWork, begun: asyncio.Event, trained: asyncio.Event) -> list[float]:
    """Seconds between the tokens of an answer while the rows are trained; where one ends the next begins."""
    gaps_s: list[float] = []
    number = itertools.count()
    while not trained.is_set():
        arrivals, first = Arrivals(), Count([1])

        def listen(chunk: TokenChunk, arrivals: Arrivals = arrivals, first: Count = first) -> None:
            arrivals(chunk)
            first(chunk)

        call = _call(engine, work, f"answer-{next(number)}")
        answer = asyncio.create_task(engine.generate(call, listen))
        await _until(first.reached[0], answer)
        begun.set()
        await _until(trained, answer)
        gaps_s += [later - earlier for earlier, later in itertools.pairwise(arrivals.at)]
        await engine.abort(call.id)
        await answer
    return gaps_s


async def _until(event: asyncio.Event, task: asyncio.Task[Any]) -> None:
    """Returns when the event is set, or the task has ended; raises what the task has raised."""
    waiting = asyncio.create_task(event.wait())
    await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if task.done():
        task.result()


async def _abort(engine: LocalEngine, work: RowWork, trained: asyncio.Event) -> list[float]:
    """Seconds from asking for an abort to its call's answer, of those asked for while the rows were trained."""
    taken_s: list[float] = []
    for number in itertools.count():
        call = _call(engine, work, f"aborted-{number}")
        answer = asyncio.create_task(engine.generate(call))
        await asyncio.wait({answer}, timeout=work.every_s)
        if trained.is_set():
            await engine.abort(call.id)
            await answer
            return taken_s
        asked_at = time.perf_counter()
        await engine.abort(call.id)
        await answer
        taken_s.append(time.perf_counter() - asked_at)
    raise AssertionError("numbers do not end")


def _call(engine: LocalEngine, work: RowWork, name: str) -> Call:
    longest = engine.context_length - len(work.prompt)
    return Call(name, name, work.prompt, Sampling(max_new_tokens=longest, ignore_eos=True, seed=work.seed))
