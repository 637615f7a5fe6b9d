"""Checks on random chats that every sampled token is either trained exactly once or masked for one reason.

Knows: recorded sessions, their export, what the engine saw.  Knows not: models.
Sampled tokens are counted by the engine, and exported ones here, independently of the recorder's and the ledger's own
sums.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ludus.algorithms.pack import TrainSequence
from ludus.checks.verify.chat import chat_of_words
from ludus.checks.verify.trees import WORDS, PlayedTree, play_tree
from ludus.checks.verify.verdict import OnDone, Verdict, ignore
from ludus.episodes.export import Exported, ExportStyle, TokenBounds, TurnCredit, export_session
from ludus.episodes.ledger import MaskReason
from ludus.processes.blocking import run_blocking
from ludus.types import ForkReason

STYLES: tuple[ExportStyle, ...] = ("individual", "concat")
# Versions in random chats begin at 0 or 1 and increase, so that some tokens are stale; few paths are longer than this.
_EXPORT: Mapping[str, Any] = {"weight": 1.0, "bounds": TokenBounds(stale_before=1, max_tokens=160)}
_REASONS: tuple[MaskReason, ...] = ("no_credit", "zero_advantage", "rejected", "failed", "small_group")


@dataclass(frozen=True, slots=True)
class LedgerResult(Verdict):
    trees: int
    seed: int
    turns: int
    sampled: int
    """Counted by the engines, once for each tree; `trained` and `masked` are those of the first style."""
    trained: int
    masked: Mapping[MaskReason, int] = field(default_factory=dict)
    forks: Mapping[ForkReason, int] = field(default_factory=dict)
    """Turns whose tokens do not extend those of the turn they follow, by reason."""
    unbalanced: int = 0
    """Number of trees that violate the rule in some style."""
    first_broken: int | None = None
    """Number of the first such tree. None: there is none."""

    @property
    def ok(self) -> bool:
        return self.unbalanced == 0


def verify_ledger(*, trees: int = 10_000, seed: int = 0, on_done: OnDone = ignore) -> LedgerResult:
    """Is every sampled token trained once, or masked for one named reason?

    Random chats with edits, retries, parallel sub-agents and dropped
    history are run through the recorder with a scripted engine, exported
    in both styles, and every token that the engine sampled is counted.

    Example:  ludus verify ledger --trees 10000 --seed 7
    """
    return run_blocking(_verify(trees, seed, on_done))


async def _verify(trees: int, seed: int, on_done: OnDone) -> LedgerResult:
    text = chat_of_words(WORDS)
    masked: Counter[MaskReason] = Counter()
    forks: Counter[ForkReason] = Counter()
    broken: list[int] = []
    turns = sampled = trained = 0
    for number in range(trees):
        rng = random.Random(f"{seed}/{number}")
        tree = await play_tree(rng, text)
        credit = {turn.id: _random_credit(rng) for turn in tree.record.turns}
        exports = [export_session(tree.record, credit, style=style, **_EXPORT) for style in STYLES]
        turns += len(tree.record.turns)
        sampled += tree.num_sampled
        trained += _count_trained(exports[0].sequences)
        masked.update(exports[0].ledger.masked)
        forks.update(turn.fork for turn in tree.record.turns if turn.fork is not None)
        if not (is_recorded(tree) and is_balanced(tree.num_sampled, exports)):
            broken.append(number)
        on_done(number + 1, trees)
    by_reason = (dict(sorted(masked.items())), dict(sorted(forks.items())))
    return LedgerResult(trees, seed, turns, sampled, trained, *by_reason, len(broken), broken[0] if broken else None)


def is_recorded(tree: PlayedTree) -> bool:
    """Whether every token that the engine sampled is recorded once, after the prompt that the engine got.

    A request repeated with its retry key must have got the same answer.
    """
    paths = {turn.id: tree.record.path_ids(turn.node) for turn in tree.record.turns}
    seen = {turn.id: (*tree.calls[turn.id].prompt_ids, *turn.sampled.token_ids) for turn in tree.record.turns}
    num_recorded = sum(len(turn.sampled.token_ids) for turn in tree.record.turns)
    is_answered_once = all(len(answers) == 1 for answers in tree.answers.values())
    return paths == seen and tree.num_sampled == num_recorded and is_answered_once


def is_balanced(num_sampled: int, exports: Sequence[Exported]) -> bool:
    """Whether the counts add up in every style, and all styles train the same tokens with the same contexts."""
    sums = {_count_trained(one.sequences) + sum(one.ledger.masked.values()) for one in exports}
    targets = [_targets(one.sequences) for one in exports]
    return sums == {num_sampled} and all(one == targets[0] for one in targets)


def _random_credit(rng: random.Random) -> TurnCredit:
    if rng.random() < 0.3:
        return TurnCredit(advantage=None, mask=rng.choice(_REASONS))
    return TurnCredit(advantage=rng.choice((0.0, rng.uniform(-2.0, 2.0))), mask=None)


def _count_trained(sequences: Sequence[TrainSequence]) -> int:
    return sum(len(sequence.target_idx) for sequence in sequences)


def _targets(sequences: Sequence[TrainSequence]) -> Counter[tuple[tuple[int, ...], float]]:
    """Every trained token with its whole context, and its advantage, which distinguishes equal paths."""
    return Counter(
        (sequence.token_ids[: idx + 1], advantage)
        for sequence in sequences
        for idx, advantage in zip(sequence.target_idx, sequence.advantages, strict=True)
    )
