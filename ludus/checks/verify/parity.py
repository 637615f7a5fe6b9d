"""Checks that sampler and trainer agree: the recorded logprob of a token is the one that the trainer computes.

Knows: conversations, packed rows, the trainer's metrics.  Knows not: how either side computes.
The trainer's side is the forward pass of a training step, over rows packed as in a training step.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ludus.algorithms.pack import Batch, TrainSequence, pack
from ludus.api.local import open_local
from ludus.checks.verify.conversations import play_conversations
from ludus.checks.verify.verdict import MODEL, OnDone, Verdict, ignore
from ludus.compat.config import Config
from ludus.episodes.export import TurnCredit, export_session
from ludus.models.settings import ModelSettings
from ludus.processes.blocking import run_blocking
from ludus.types import SessionRecord

TOLERANCE_FP32 = 1e-4
"""Both sides compute in fp32, in different orders: rounding grows to about 1e-5 over thirty layers, errors to far
more."""
Dtype = Literal["fp32", "bf16"]
_DTYPES: Mapping[str, Literal["float32", "bfloat16"]] = {"fp32": "float32", "bf16": "bfloat16"}


@dataclass(frozen=True, slots=True)
class ParityResult(Verdict):
    model: str
    dtype: str
    seed: int
    tokens: int
    """Trained tokens: the sampled ones without masked ones."""
    kept_tokens: int
    """Tokens sampled from a restricted set: by top-p, top-k, min-p or a grammar."""
    shaped_tokens: int
    """Tokens whose logits were changed by penalties or biases."""
    masked: int
    """Tokens sampled from a restricted set too large to be recorded."""
    turns: int
    forks: int
    cached_tokens: int
    """Prompt tokens taken from the engine's prefix cache."""
    shared: float
    """Share of the sequences' tokens that packing removes by sharing prefixes."""
    max_abs_diff: float
    """Largest absolute difference of logprobs between sampler and trainer."""
    mean_abs_diff: float
    tolerance: float | None
    """None: the difference is only reported, because bf16 rounds differently in every batch."""

    @property
    def ok(self) -> bool:
        return self.tolerance is None or self.max_abs_diff <= self.tolerance


def verify_parity(
    *, dtype: Dtype = "fp32", tokens: int = 1000, model: str = MODEL, seed: int = 0, on_done: OnDone = ignore
) -> ParityResult:
    """Do sampler and trainer agree on the logprob of every token?

    Several conversations run at once through recorder and engine,
    then the trainer scores exactly the recorded tokens. In fp32 the largest
    difference must be at most 1e-4; in bf16 it is reported.

    Example:  ludus verify parity --dtype fp32 --tokens 1000
    """
    return run_blocking(_verify(check_config(model, dtype, seed), dtype, tokens, on_done))


def check_config(model: str, dtype: str, seed: int) -> Config:
    """The configuration of a run with this model, with defaults for everything else."""
    return Config(seed=seed, model=ModelSettings(path=model, dtype=_DTYPES[dtype]))


async def _verify(config: Config, dtype: str, tokens: int, on_done: OnDone) -> ParityResult:
    async with open_local(config) as local:
        records = await play_conversations(local.recorder, tokens=tokens, seed=config.seed, on_done=on_done)
        batch = Batch.of(pack(export_all(records), row_tokens=config.trainer.row_tokens), version=0)
        seen = local.trainer(config).forward_backward(batch)
    turns = [turn for record in records for turn in record.turns]
    return ParityResult(
        model=config.model.path,
        dtype=dtype,
        seed=config.seed,
        tokens=batch.num_trained,
        kept_tokens=sum(bool(kept) for row in batch.rows for kept in row.kept_ids),
        shaped_tokens=sum(shaping is not None for row in batch.rows for shaping in row.logit_processings),
        masked=sum(record.num_sampled_tokens for record in records) - batch.num_trained,
        turns=len(turns),
        forks=sum(turn.fork is not None for turn in turns),
        shared=round(1.0 - batch.num_row_tokens / batch.num_sequence_tokens, 4),
        max_abs_diff=seen["train/logprob_gap_max"],
        mean_abs_diff=seen["train/logprob_gap_mean"],
        cached_tokens=sum(turn.sampled.num_cached_tokens for turn in turns),
        tolerance=TOLERANCE_FP32 if dtype == "fp32" else None,
    )


def export_all(records: Sequence[SessionRecord], rng: random.Random | None = None) -> list[TrainSequence]:
    """A training sequence for every turn, with a random advantage. rng: None: all advantages are 1."""
    sequences: list[TrainSequence] = []
    for record in records:
        credit = {turn.id: TurnCredit(rng.uniform(-1.0, 1.0) if rng else 1.0, mask=None) for turn in record.turns}
        sequences += export_session(record, credit, weight=1.0, style="individual").sequences
    return sequences
