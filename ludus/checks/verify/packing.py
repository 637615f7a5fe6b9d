"""Packing never changes the gradient: shared prefixes computed once give what one turn at a time gives.

Knows: recorded conversations, batches, gathered gradients.  Knows not: attention, optimizers.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ludus.algorithms.pack import Batch, TrainSequence, pack
from ludus.api.local import open_local
from ludus.checks.verify.conversations import play_conversations
from ludus.checks.verify.parity import check_config, export_all
from ludus.checks.verify.verdict import MODEL, Verdict
from ludus.compat.config import Config
from ludus.processes.blocking import run_blocking

if TYPE_CHECKING:
    from ludus.trainer.step import ModelTrainer

TOLERANCE = 1e-5
"""fp32 sums of some hundred terms in another order differ by less; a token with a wrong past differs by far more."""
_TOKENS = 400
_SESSIONS_PER_BATCH = 2
"""Two sessions that begin alike share their first prompt; the turns of one share all that was said before."""


@dataclass(frozen=True, slots=True)
class PackingResult(Verdict):
    model: str
    seed: int
    batches: int
    sequences: int
    trained_tokens: int
    sequence_tokens: int
    """Tokens that go through the model one turn at a time."""
    row_tokens: int
    """Tokens that go through the model packed."""
    max_rel_diff: float
    """Of the batches' gradients, the largest norm of a difference over the norm of the gradient."""
    worst_parameter: str
    worst_parameter_rel_diff: float
    """The same for the parameter that differs most in its own measure; reported, not judged: some gradients nearly
    vanish, and rounding is then most of them."""
    tolerance: float = TOLERANCE

    @property
    def ok(self) -> bool:
        return self.max_rel_diff <= self.tolerance


def verify_packing(*, model: str = MODEL, seed: int = 0, tokens: int = _TOKENS) -> PackingResult:
    """Is the gradient of packed rows that of one episode at a time?

    Recorded conversations with shared prefixes are trained packed, and one
    turn at a time, in fp32. The gradients may differ by 1e-5 of their size.

    Example:  ludus verify packing --seed 3
    """
    return run_blocking(_verify(check_config(model, "fp32", seed), tokens))


async def _verify(config: Config, tokens: int) -> PackingResult:
    async with open_local(config) as local:
        records = await play_conversations(local.recorder, tokens=tokens, seed=config.seed)
        rng = random.Random(config.seed)
        trees = [
            export_all(records[at : at + _SESSIONS_PER_BATCH], [rng.uniform(-1.0, 1.0) for _ in range(97)])
            for at in range(0, len(records), _SESSIONS_PER_BATCH)
        ]
        trainer = local.trainer(config)
        compared = [_compare(trainer, sequences, config.trainer.row_tokens) for sequences in trees]
    packed = [one.packed for one in compared]
    by_parameter = max((pair for one in compared for pair in one.by_parameter.items()), key=lambda pair: pair[1])
    return PackingResult(
        model=config.model.path,
        seed=config.seed,
        batches=len(trees),
        sequences=sum(len(sequences) for sequences in trees),
        trained_tokens=sum(batch.num_trained for batch in packed),
        sequence_tokens=sum(batch.num_sequence_tokens for batch in packed),
        row_tokens=sum(batch.num_row_tokens for batch in packed),
        max_rel_diff=max(one.rel_diff for one in compared),
        worst_parameter=by_parameter[0],
        worst_parameter_rel_diff=by_parameter[1],
    )


@dataclass(frozen=True, slots=True)
class _Compared:
    packed: Batch
    rel_diff: float
    by_parameter: Mapping[str, float]


def _compare(trainer: ModelTrainer, sequences: Sequence[TrainSequence], row_tokens: int) -> _Compared:
    """Both gradients of one batch: gathered from packed rows, and from rows of a single turn each."""
    packed = Batch.of(pack(sequences, row_tokens=row_tokens), version=0)
    trainer.forward_backward(packed)
    of_packed = {name: gradient.clone() for name, gradient in trainer.optimizer.gradients().items()}
    trainer.optimizer.forget_gradients()
    for sequence in sequences:
        trainer.forward_backward(Batch.of(pack([sequence], row_tokens=row_tokens), version=0))
    norms = {
        name: (float((gradient - of_packed[name]).norm()), float(gradient.norm()))
        for name, gradient in trainer.optimizer.gradients().items()
    }
    trainer.optimizer.forget_gradients()
    whole = [math.hypot(*column) for column in zip(*norms.values(), strict=True)]
    return _Compared(packed, _ratio(*whole), {name: _ratio(*pair) for name, pair in norms.items()})


def _ratio(difference: float, norm: float) -> float:
    return difference / norm if norm else difference
