"""Checks that packing does not change the gradient: not by shared prefixes, row sizes or export styles.

Knows: recorded conversations, batches, gradients.  Knows not: attention, optimizers.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ludus.algorithms.pack import Batch, TrainSequence, pack
from ludus.algorithms.settings import AlgorithmSettings
from ludus.api.local import open_local
from ludus.checks.verify.conversations import play_conversations
from ludus.checks.verify.gradients import gradient_of, rel_diff
from ludus.checks.verify.parity import check_config, export_all
from ludus.checks.verify.verdict import MODEL, Verdict
from ludus.compat.config import Config
from ludus.episodes.episode import finish
from ludus.episodes.export import ExportStyle
from ludus.episodes.outcome import Returned
from ludus.episodes.spec import SessionSpec
from ludus.loop.batch import BatchRules, build_batch
from ludus.processes.blocking import run_blocking
from ludus.rollout.groups import TakenGroups
from ludus.types import Group, SessionRecord

if TYPE_CHECKING:
    from torch import Tensor

    from ludus.trainer.step import ModelTrainer

TOLERANCES = {"cpu": 1e-5, "cuda": 1e-4}
"""fp32 sums of some hundred terms in another order differ by less than this; a token with a wrong context differs by
far more. On a card the order of sums in products depends on their sizes: 5e-5 was measured on an H200, where processor
and card differ by 4e-5."""
_TOKENS = 400
_FIRST: tuple[int, ExportStyle] = (1024, "individual")
"""Row size in tokens, and export style."""
_OTHERS: tuple[tuple[int, ExportStyle], ...] = ((64, "concat"), (200, "individual"))
"""They take turns to be compared with the first."""
_NORMALISERS: tuple[dict[str, Any], ...] = ({"kind": "token"}, {"kind": "episode"}, {"kind": "constant", "tokens": 20})
_LOSSES: tuple[dict[str, Any], ...] = (
    {"correction": "bypass", "loss": {"clip_low": 0.5, "clip_high": 0.5}},
    {
        "correction": [
            {"kind": "truncate", "cap": 1.1},
            {"kind": "mask", "weighs": False, "level": "episode", "mean": "geometric", "low": 0.9, "high": 1.1},
        ],
        "loss": {"level": "episode"},
        "kl": {"beta": 0.1, "estimator": "k1"},
    },
)
"""Ratios by token, where tokens of a flat group only count; by episode, corrected, with a KL term that trains them."""
_SPREAD = 0.2
"""Of the difference between recorded logprobs and those that the sampler is said to have had: there is something to
clip and to correct."""
_MINIBATCHES = (1, 2, 3)
_TURNS = 2
"""Of a conversation in a group: the second repeats the first, and every further one costs as much as both."""
_SESSIONS_PER_BATCH = 2
"""Two sessions with the same beginning share their first prompt; turns of one session share its history."""


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
    """Largest relative difference of a batch's gradient: norm of the difference over norm of the gradient."""
    worst_parameter: str
    worst_parameter_rel_diff: float
    """The same for the single parameter that differs most; only reported, because gradients that nearly vanish consist
    mostly of rounding."""
    variants: int
    """Number of ways in which the same batch, one of whose groups is flat, was built: row sizes, export styles, weights
    by token, by episode and by a constant, ratios by token and by episode, the latter corrected and with a KL term, one
    and several minibatches."""
    variants_rel_diff: float
    """As `max_rel_diff`, for the gradients of their minibatches, compared with those of the first row size."""
    minibatches: tuple[int, ...]
    """Numbers of minibatches that a batch was cut into."""
    minibatches_rel_diff: float
    """As `max_rel_diff`, for the mean over a batch's minibatches, compared with the batch as one."""
    minibatches_equal: bool
    """Whether each minibatch trained the same episodes for all row sizes."""
    tolerance: float

    @property
    def ok(self) -> bool:
        differences = (self.max_rel_diff, self.variants_rel_diff, self.minibatches_rel_diff)
        return self.minibatches_equal and max(differences) <= self.tolerance


def verify_packing(*, model: str = MODEL, seed: int = 0, tokens: int = _TOKENS) -> PackingResult:
    """Is the gradient of packed rows that of one turn at a time?

    Recorded conversations with shared prefixes are trained packed, and one
    turn at a time, in fp32; then as groups, whole and cut into two and three
    minibatches, for rows of several sizes and both styles of export, under each
    normaliser, by token and by episode, with a KL term and corrections; one group
    is flat. The gradients may differ by 1e-5 of their size, on a card by 1e-4, and
    those of minibatches must add up to the whole one.

    Example:  ludus verify packing --seed 3
    """
    return run_blocking(_verify(check_config(model, "fp32", seed), tokens))


async def _verify(config: Config, tokens: int) -> PackingResult:
    async with open_local(config) as local:
        records = await play_conversations(local.recorder, tokens=tokens, seed=config.seed)
        rng = random.Random(config.seed)
        trees = [
            export_all(records[at : at + _SESSIONS_PER_BATCH], rng)
            for at in range(0, len(records), _SESSIONS_PER_BATCH)
        ]
        trainer = local.trainer(config)
        compared = [_compare(trainer, sequences, config.trainer.row_tokens) for sequences in trees]
        groups = _groups(records, rng)
        others = itertools.cycle(_OTHERS)
        varied = [
            _vary(trainer, groups, {"normaliser": normaliser, **loss}, others)
            for normaliser, loss in zip(_NORMALISERS, itertools.cycle(_LOSSES), strict=False)
        ]
    packed, differences, by_parameter = zip(*compared, strict=True)
    worst = max((pair for each in by_parameter for pair in each.items()), key=lambda pair: pair[1])
    return PackingResult(
        model=config.model.path,
        seed=config.seed,
        batches=len(trees),
        sequences=sum(len(sequences) for sequences in trees),
        trained_tokens=sum(batch.num_trained for batch in packed),
        sequence_tokens=sum(batch.num_sequence_tokens for batch in packed),
        row_tokens=sum(batch.num_row_tokens for batch in packed),
        max_rel_diff=max(differences),
        worst_parameter=worst[0],
        worst_parameter_rel_diff=worst[1],
        variants=len(varied) * len(_MINIBATCHES) * 2,
        variants_rel_diff=max(each.rows for each in varied),
        minibatches=_MINIBATCHES,
        minibatches_rel_diff=max(each.cuts for each in varied),
        minibatches_equal=all(each.has_equal_parts for each in varied),
        tolerance=TOLERANCES[local.model.head_weight.device.type],
    )


def _groups(records: Sequence[SessionRecord], rng: random.Random) -> TakenGroups:
    """Groups of conversations with the same beginning, each with a random reward; in the first group all rewards are
    equal. Their logprobs are moved, as if a policy near by had sampled them."""
    groups = []
    for number, at in enumerate(range(0, len(records), _SESSIONS_PER_BATCH)):
        spec = SessionSpec(group_id=f"g{number}")
        members = [
            finish(spec, _moved(record, rng), Returned(rng.uniform(-1.0, 1.0) if number else 0.5), started_at=0.0)
            for record in records[at : at + _SESSIONS_PER_BATCH]
        ]
        groups.append(Group(f"g{number}", "row", tuple(members)))
    return TakenGroups(tuple(groups), ())


def _moved(record: SessionRecord, rng: random.Random) -> SessionRecord:
    turns = []
    for turn in record.turns[:_TURNS]:
        logprobs = tuple(min(each + rng.gauss(0.0, _SPREAD), 0.0) for each in turn.sampled.logprobs)
        turns.append(replace(turn, sampled=replace(turn.sampled, logprobs=logprobs)))
    return replace(record, turns=tuple(turns))


@dataclass(slots=True)
class _Differences:
    """Differences between the ways to build one batch."""

    rows: float = 0.0
    """Largest difference of a minibatch's gradient from that of the first row size."""
    cuts: float = 0.0
    """Largest difference of the mean over minibatches from the batch as one."""
    has_equal_parts: bool = True
    """Whether each minibatch trained the same episodes for all row sizes."""


def _vary(
    trainer: ModelTrainer,
    groups: TakenGroups,
    keys: Mapping[str, Any],
    others: Iterator[tuple[int, ExportStyle]],
) -> _Differences:
    """Build one batch as one and as several minibatches, each with the first row size and with the next of the
    others. Only gradients that are compared with later are kept, as each is as large as the model."""
    seen = _Differences()
    whole: dict[str, Tensor] = {}
    for count in _MINIBATCHES:
        algorithm = AlgorithmSettings(minibatches=count, **keys)
        first: list[tuple[set[int], dict[str, Tensor]]] = []
        for number, (row_tokens, style) in enumerate((_FIRST, next(others))):
            rules = BatchRules(algorithm, 1.0, style, row_tokens, max_token_age=None)
            parts = build_batch(groups, rules, version=0).batch.minibatches
            mean: dict[str, Tensor] = {}
            for place, part in enumerate(parts):
                episodes = {episode for row in part for episode in row.episodes or ()}
                gradient = gradient_of(trainer, [Batch.of(part)], algorithm)
                # the mean over minibatches, which the loss scales up by their number
                mean = {name: mean.get(name, 0) + each / len(parts) for name, each in gradient.items()}
                if number == 0:
                    first.append((episodes, gradient))
                    continue
                seen.rows = max(seen.rows, rel_diff(gradient, first[place][1]))
                seen.has_equal_parts &= len(parts) == len(first) and episodes == first[place][0]
            whole = whole or mean
            seen.cuts = max(seen.cuts, rel_diff(mean, whole))
    return seen


def _compare(
    trainer: ModelTrainer, sequences: Sequence[TrainSequence], row_tokens: int
) -> tuple[Batch, float, dict[str, float]]:
    """The packed batch, and the relative differences of its gradient from that of one turn a row: overall, and by
    parameter."""
    batch = Batch.of(pack(sequences, row_tokens=row_tokens), version=0)
    packed = gradient_of(trainer, [batch])
    single = gradient_of(
        trainer, (Batch.of(pack([sequence], row_tokens=row_tokens), version=0) for sequence in sequences)
    )
    by_parameter = {name: rel_diff({name: packed[name]}, {name: gradient}) for name, gradient in single.items()}
    return batch, rel_diff(packed, single), by_parameter
