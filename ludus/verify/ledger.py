"""The conservation law on random sessions: every sampled token is trained exactly once or masked for one reason.

Knows: sessions, their export.  Knows not: models.
The tokens are counted here anew, from the record and from the sequences; the ledger's own sums are not trusted.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ludus.algo.pack import TrainSequence
from ludus.session.export import Exported, ExportStyle, TurnCredit, export_session
from ludus.session.ledger import MaskReason
from ludus.types import SessionRecord
from ludus.verify.trees import random_session

STYLES: tuple[ExportStyle, ...] = ("individual", "concat")
_OLDEST_TRAINED = 1
"""Versions in random sessions are 0 to 3: some tokens are stale, most are not."""
_MAX_TOKENS = 60
"""Longer paths are rare in random sessions, and there are some."""


@dataclass(frozen=True, slots=True)
class LedgerResult:
    trees: int
    seed: int
    turns: int
    sampled: int
    """Counted from the records, once a tree; what follows is of the first style."""
    trained: int
    masked: Mapping[MaskReason, int] = field(default_factory=dict)
    unbalanced: int = 0
    """Trees that break the law in some style."""
    first_broken: int | None = None
    """Number of the first such tree. None: there is none."""

    @property
    def ok(self) -> bool:
        return self.unbalanced == 0

    def to_json(self) -> dict[str, object]:
        return {
            "check": "ledger",
            "trees": self.trees,
            "seed": self.seed,
            "turns": self.turns,
            "sampled": self.sampled,
            "trained": self.trained,
            "masked": dict(sorted(self.masked.items())),
            "unbalanced": self.unbalanced,
            "first_broken": self.first_broken,
            "ok": self.ok,
        }


def verify_ledger(*, trees: int, seed: int, on_tree: Callable[[int], object] | None = None) -> LedgerResult:
    """Export `trees` random sessions in every style and count. `on_tree` is told how many are done."""
    masked: Counter[MaskReason] = Counter()
    broken: list[int] = []
    turns = sampled = trained = 0
    for number in range(trees):
        record, credit = random_session(random.Random(f"{seed}/{number}"))
        exports = [_export(record, credit, style) for style in STYLES]
        turns += len(record.turns)
        sampled += _count_sampled(record)
        trained += _count_trained(exports[0].sequences)
        masked.update(exports[0].ledger.masked)
        if not _is_balanced(record, exports):
            broken.append(number)
        if on_tree is not None:
            on_tree(number + 1)
    return LedgerResult(trees, seed, turns, sampled, trained, masked, len(broken), broken[0] if broken else None)


def _export(record: SessionRecord, credit: Mapping[str, TurnCredit], style: ExportStyle) -> Exported:
    return export_session(record, credit, weight=1.0, style=style, stale_before=_OLDEST_TRAINED, max_tokens=_MAX_TOKENS)


def _is_balanced(record: SessionRecord, exports: Sequence[Exported]) -> bool:
    """The counts add up in every style, and all styles train the same tokens after the same tokens."""
    sums = {_count_trained(one.sequences) + sum(one.ledger.masked.values()) for one in exports}
    targets = [_targets(one.sequences) for one in exports]
    return sums == {_count_sampled(record)} and all(one == targets[0] for one in targets)


def _count_sampled(record: SessionRecord) -> int:
    return sum(len(node.token_ids) for node in record.nodes if node.turn_id is not None)


def _count_trained(sequences: Sequence[TrainSequence]) -> int:
    return sum(len(sequence.target_idx) for sequence in sequences)


def _targets(sequences: Sequence[TrainSequence]) -> Counter[tuple[tuple[int, ...], float]]:
    """Every trained token with the whole path before it, and its logprob, which tells equal tokens apart."""
    return Counter(
        (sequence.token_ids[: idx + 1], logprob)
        for sequence in sequences
        for idx, logprob in zip(sequence.target_idx, sequence.logprobs, strict=True)
    )
