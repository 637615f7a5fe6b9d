"""Checks that a trainer on several ranks equals one on a single rank: gradient, curve, state after a checkpoint, and
what the ranks send to those that sample.

Knows: recorded conversations, trainers on one and several processes, checkpoints.  Knows not: how weights are sharded.
The ranks are separate processes, started as in a run.
"""

from __future__ import annotations

import asyncio
import gc
import random
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ludus.algorithms.pack import Batch, pack
from ludus.api.local import open_local
from ludus.checks.verify.conversations import play_conversations
from ludus.checks.verify.gradients import gradient_of, rel_diff
from ludus.checks.verify.parity import check_config, export_all
from ludus.checks.verify.verdict import MODEL, Verdict
from ludus.cluster.cluster import open_cluster
from ludus.cluster.ranks import open_ranks
from ludus.compat.config import Config
from ludus.errors import UserError
from ludus.models.resolve import resolve_tokenizer
from ludus.processes.blocking import run_blocking
from ludus.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from torch import Tensor

    from ludus.checks.verify.gradients import AnyTrainer

ResultT = TypeVar("ResultT")

GRADIENT_TOLERANCE = 1e-5
"""As for packing: fp32 sums in another order."""
CURVE_TOLERANCE = 1e-4
"""Relative to the largest loss: AdamW moves a weight whose gradient is only rounding as far as any other."""
RESUME_TOLERANCE = 1e-6
_TOKENS = 400
_ROW_TOKENS = 96
"""Small, so that there are several rows of different lengths."""
_LR = 1e-5
_MB = 1e6
# Of whole weights that ranks send together: small, so that several messages are sent of a small model.
_SENT_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class RanksResult(Verdict):
    model: str
    seed: int
    ranks: Sequence[int]
    """The numbers of ranks, each compared with one rank."""
    rows: int
    row_tokens: tuple[int, int]
    """Tokens of the shortest and of the longest row."""
    trained_tokens: int
    gradient_rel_diff: Mapping[int, float]
    """By number of ranks: norm of the difference over norm of the gradient, for the whole model."""
    losses: Sequence[float]
    """Losses of the steps on one rank."""
    curve_rel_diff: Mapping[int, float]
    """By number of ranks: largest difference of a loss, divided by the largest loss."""
    weights_rel_diff: Mapping[int, float]
    """By number of ranks: relative difference of the weights at the end of the curve; only reported."""
    state_equal: bool
    """Whether masters and moments are equal, to the last bit, in a checkpoint of several ranks and one that a single
    rank wrote after reading it."""
    split_gradient_rel_diff: Mapping[str, float]
    """As `gradient_rel_diff`, where rows or layers are cut over the ranks, by the settings."""
    sent_equal: bool
    """Whether what the ranks send by themselves has every bit of what rank 0 would have gathered."""
    largest_message_mb: Mapping[int, float]
    """By number of ranks, when they send the weights."""
    peak_mb: Mapping[int, float | None]
    """By number of ranks: how much more memory a rank had at most while it sent. null: it cannot be measured here."""
    resume_rel_diff: float
    """Relative difference of the weights at the end between training on several ranks throughout, and on several, one,
    and several again."""

    @property
    def ok(self) -> bool:
        return (
            max([*self.gradient_rel_diff.values(), *self.split_gradient_rel_diff.values()]) <= GRADIENT_TOLERANCE
            and self.sent_equal
            and max(self.curve_rel_diff.values()) <= CURVE_TOLERANCE
            and self.state_equal
            and self.resume_rel_diff <= RESUME_TOLERANCE
        )


def verify_ranks(*, ranks: Sequence[int] = (2, 4), steps: int = 6, model: str = MODEL, seed: int = 0) -> RanksResult:
    """Is a trainer on several ranks the trainer on one?

    Recorded conversations, packed into rows of unequal length, are trained
    in fp32 on one process and on several: the gradients may differ by 1e-5
    of their size, the curves by 1e-4 of the largest loss. A checkpoint of
    several ranks must come through one with every bit, and training on
    several, on one and on several again may differ by 1e-6. The gradient
    must be the same with the rows cut over all ranks, with the layers, and
    with both, as far as the model's heads can be shared so; and what every
    rank sends by itself must be what one would have gathered.

    Example:  ludus verify ranks --ranks 2 --ranks 4

    Raises UserError if a number of ranks or of steps leaves nothing to compare.
    """
    if not ranks or min(ranks) < 2 or steps < 3:
        raise UserError(f"--ranks {list(ranks)} must be 2 or more each, and --steps {steps} at least 3")
    with tempfile.TemporaryDirectory(prefix="ludus-ranks-") as scratch:
        config = check_config(model, "fp32", seed)
        trainer = {"row_tokens": _ROW_TOKENS, "optimizer": config.trainer.optimizer.model_copy(update={"lr": _LR})}
        changes = {"run_root": scratch, "name": "ranks", "trainer": config.trainer.model_copy(update=trainer)}
        return run_blocking(_verify(config.model_copy(update=changes), list(ranks), steps, Path(scratch)))


async def _verify(config: Config, ranks: list[int], steps: int, scratch: Path) -> RanksResult:
    batch = await _record(config)
    expected = await _with_ranks(config, 1, partial(_measure, batch=batch, steps=steps, saved=None))
    seen: dict[int, _Seen] = {}
    for count in ranks:
        measure = partial(_measure, batch=batch, steps=steps, saved=scratch / f"by-{count}")
        seen[count] = await _with_ranks(config, count, measure)
    split = {
        ", ".join(f"{key}={value}" for key, value in each.items()): rel_diff(
            await _with_ranks(config, each["ranks"], partial(gradient_of, batches=[batch]), each), expected.gradient
        )
        for count in ranks
        for each in _splits(count, expected.heads)
    }
    first = ranks[0]
    state_equal, resumed = await _resume(config, batch, steps, first, scratch)
    lengths = [len(row.token_ids) for row in batch.rows]
    largest = max(map(abs, expected.losses))
    return RanksResult(
        model=config.model.path,
        seed=config.seed,
        ranks=ranks,
        rows=len(batch.rows),
        row_tokens=(min(lengths), max(lengths)),
        trained_tokens=batch.num_trained,
        gradient_rel_diff={count: rel_diff(one.gradient, expected.gradient) for count, one in seen.items()},
        losses=[round(loss, 6) for loss in expected.losses],
        curve_rel_diff={
            count: max(abs(got - loss) for got, loss in zip(one.losses, expected.losses, strict=True)) / largest
            for count, one in seen.items()
        },
        weights_rel_diff={count: rel_diff(one.weights, expected.weights) for count, one in seen.items()},
        split_gradient_rel_diff=split,
        sent_equal=all(one.sent.is_equal for one in seen.values() if one.sent is not None),
        largest_message_mb={count: round(one.sent.largest_mb, 3) for count, one in seen.items() if one.sent},
        peak_mb={count: one.sent.peak_mb for count, one in seen.items() if one.sent},
        state_equal=state_equal,
        resume_rel_diff=rel_diff(resumed, seen[first].weights),
    )


async def _record(config: Config) -> Batch:
    """Record conversations of the model, as a batch."""
    async with open_local(config) as local:
        records = await play_conversations(local.recorder, tokens=_TOKENS, seed=config.seed)
    sequences = export_all(records, random.Random(config.seed))
    return Batch.of(pack(sequences, row_tokens=config.trainer.row_tokens), version=0)


def _splits(count: int, heads: tuple[int, int]) -> list[dict[str, int]]:
    """The ways in which `count` ranks can compute rows together, as settings of the trainer. heads: as of `_Seen`."""
    num_heads, num_kv_heads = heads
    both = [(1, count), (count, 1), *([(2, count // 2)] if count > 2 and count % 2 == 0 else [])]
    return [
        {"ranks": count, "tensor_parallel": tensor, "context_parallel": context}
        for tensor, context in both
        if num_kv_heads % tensor == 0 and num_heads // tensor >= context
    ]


async def _with_ranks(
    config: Config, count: int, work: Callable[[AnyTrainer], ResultT], split: Mapping[str, int] | None = None
) -> ResultT:
    """What `work` returns for a trainer on `count` ranks with the model's initial weights; the trainer is released
    afterwards. split: how they compute together. None: each its own rows."""
    settings = config.trainer.model_copy(update={"ranks": count, **(split or {})})
    own = config.model_copy(update={"trainer": settings, "name": f"ranks-{count}"})
    async with AsyncExitStack() as stack:
        trainer: AnyTrainer
        if count == 1:
            trainer = (await stack.enter_async_context(open_local(own))).trainer(own)
        else:
            tokenizer = Tokenizer.load(resolve_tokenizer(own.model.path))
            cluster = await stack.enter_async_context(open_cluster(own))
            trainer = await stack.enter_async_context(open_ranks(own, cluster, tokenizer, sampling=None))
        made = await asyncio.to_thread(work, trainer)
    del trainer
    gc.collect()  # modules and their hooks form reference cycles
    return made


@dataclass(frozen=True, slots=True)
class _Seen:
    gradient: Mapping[str, Tensor]
    losses: Sequence[float]
    weights: Mapping[str, Tensor]
    sent: _Sent | None
    """None: one rank has all weights and sends none."""
    heads: tuple[int, int]
    """Of queries and of keys; of these 1 where experts keep layers from being cut."""


@dataclass(frozen=True, slots=True)
class _Sent:
    is_equal: bool
    largest_mb: float
    peak_mb: float | None


def _measure(trainer: AnyTrainer, batch: Batch, steps: int, saved: Path | None) -> _Seen:
    """The gradient of the batch, then the curve of training on it. saved: folder for the state after a third."""
    gradient = gradient_of(trainer, [batch])
    losses = []
    for step in range(steps):
        losses += _train(trainer, batch, 1)
        if saved is not None and step + 1 == steps // 3:
            trainer.save(saved)
    weights = dict(trainer.publish().named_tensors())
    sent, has_experts = None, any(each.ndim > 2 for each in trainer.model.trainable.values())
    if saved is not None and not has_experts:
        sent = _send(trainer, weights)
    config = trainer.model.config
    heads = (config.num_heads, 1 if has_experts else config.num_kv_heads)
    return _Seen(gradient, losses, weights, sent, heads)


def _send(trainer: AnyTrainer, expected: Mapping[str, Tensor]) -> _Sent:
    """Have the ranks send their pieces to a receiver in this process."""
    import torch

    from ludus.trainer.broadcast import gloo_addresses, receive
    from ludus.trainer.group import open_rendezvous
    from ludus.trainer.sharded import ShardedTrainer
    from ludus_vllm.packed import Announcement

    assert isinstance(trainer, ShardedTrainer), "one rank sends nothing in pieces"
    meeting, _store = open_rendezvous("127.0.0.1")
    addresses, published = gloo_addresses(meeting, trainer.num_ranks), trainer.publish()
    announced, got = published.announce(most_bytes=_SENT_BYTES), dict[str, torch.Tensor]()
    receiving = threading.Thread(target=lambda: got.update(receive(Announcement(**announced), addresses)), daemon=True)
    receiving.start()
    trainer.join("receiver", addresses)
    sent = published.broadcast("receiver", announced, is_measured=True)
    receiving.join()
    trainer.leave("receiver")
    peaks = [each.peak_bytes for each in sent[1:] if each.peak_bytes is not None]  # the receiver is in the first one
    return _Sent(
        list(got) == list(expected) and all(torch.equal(each, expected[name]) for name, each in got.items()),
        max(each.largest_bytes for each in sent) / _MB,
        round(max(peaks) / _MB, 3) if peaks else None,
    )


async def _resume(
    config: Config, batch: Batch, steps: int, count: int, scratch: Path
) -> tuple[bool, Mapping[str, Tensor]]:
    """Resume on one rank after a third of the steps, and on `count` again after two thirds; returns whether the state
    was equal, and the final weights."""
    third = steps // 3

    def on_one(trainer: AnyTrainer) -> bool:
        trainer.load(scratch / f"by-{count}")
        trainer.save(scratch / "by-1")
        is_equal = _same_state(scratch / f"by-{count}", scratch / "by-1")
        _train(trainer, batch, third)
        trainer.save(scratch / "later")
        return is_equal

    def on_several(trainer: AnyTrainer) -> Mapping[str, Tensor]:
        trainer.load(scratch / "later")
        _train(trainer, batch, steps - 2 * third)
        return dict(trainer.publish().named_tensors())

    return await _with_ranks(config, 1, on_one), await _with_ranks(config, count, on_several)


def _train(trainer: AnyTrainer, batch: Batch, steps: int) -> list[float]:
    losses = []
    for _ in range(steps):
        losses.append(trainer.train_batch(batch)["train/loss"])
        trainer.publish().copy_into_shared()
    return losses


def _same_state(left: Path, right: Path) -> bool:
    """Whether two checkpoints hold the same tensors, however they are sharded."""
    import torch
    from safetensors.torch import load_file

    def state(folder: Path) -> dict[str, Tensor]:
        parts: dict[str, list[Tensor]] = {}
        for path in sorted(folder.glob("*.safetensors")):
            for name, tensor in load_file(path).items():
                parts.setdefault(name, []).append(tensor)
        return {name: torch.cat(pieces) for name, pieces in parts.items()}

    ours, theirs = state(left), state(right)
    return ours.keys() == theirs.keys() and all(torch.equal(each, theirs[name]) for name, each in ours.items())
