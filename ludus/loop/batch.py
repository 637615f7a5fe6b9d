"""Groups of episodes become the batch of one step, and an account of every token they sampled. Pure.

Knows: rewards, the edges between turns, advantages, masks, packing.  Knows not: tensors, files, time.
Invariants: the order of the batch is that of group and member ids, whatever finished first;
every token of every episode handed in is trained once or masked for one named reason.

    rewards → returns of turns → advantages of all groups → weights of tokens → sequences → rows
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ludus.algorithms.base import GroupReturns, Returns
from ludus.algorithms.pack import Batch, TrainSequence, pack
from ludus.algorithms.resolve import algorithm_of
from ludus.algorithms.returns import turn_returns
from ludus.algorithms.settings import AlgorithmSettings
from ludus.episodes.export import TurnCredit, count_trained, export_session
from ludus.episodes.ledger import Ledger, MaskReason
from ludus.episodes.reward import masked_answers
from ludus.rollout.pool import Discarded, GroupFilter, TakenGroups
from ludus.types import Episode, Group


@dataclass(frozen=True, slots=True)
class BatchRules:
    """How credit becomes a batch."""

    algorithm: AlgorithmSettings
    turn_discount: float
    export_style: Literal["individual", "concat"]
    row_tokens: int
    max_head_offpolicyness: int
    accept: GroupFilter | None = None
    """Of the user. None: every group is accepted that can be trained on."""


@dataclass(frozen=True, slots=True)
class BuiltBatch:
    """A batch, and what became of everything that was handed in for it."""

    batch: Batch
    ledger: Ledger
    credit: Mapping[str, float | str]
    """By turn id: its advantage, or the reason why it is masked."""
    staleness: Mapping[int, int]
    """Sampled tokens by how many versions they are older than the weights they train."""


def build_batch(taken: TakenGroups, rules: BatchRules, *, version: int) -> BuiltBatch:
    """The batch that weights `version` are trained on next."""
    stale_before = version - rules.max_head_offpolicyness
    groups = sorted(taken.groups, key=lambda group: group.id)
    credited = [each for members in credit_groups(groups, rules) for each in members]
    bounds = {"stale_before": stale_before, "max_tokens": rules.algorithm.max_sequence_tokens}
    counts = [
        count_trained(episode.session, credit, left_out=episode.left_out, **bounds) for episode, credit in credited
    ]
    weights = algorithm_of(rules.algorithm).weights(counts)
    sequences: list[TrainSequence] = []
    ledger = account_discarded(taken.discarded)
    for (episode, credit), weight in zip(credited, weights, strict=True):
        exported = export_session(
            episode.session, credit, weight=weight, style=rules.export_style, left_out=episode.left_out, **bounds
        )
        sequences.extend(exported.sequences)
        ledger = ledger + exported.ledger
    return BuiltBatch(
        batch=Batch(rows=pack(sequences, row_tokens=rules.row_tokens), version=version),
        ledger=ledger,
        credit=_named_credit(credited, taken.discarded),
        staleness=_staleness(taken.groups, version),
    )


def credit_groups(groups: Sequence[Group], rules: BatchRules) -> list[list[tuple[Episode, Mapping[str, TurnCredit]]]]:
    """The members of each group, in the order of ids, with the credit of each of their turns."""
    by_group = [sorted(group.episodes, key=lambda episode: episode.id) for group in groups]
    returns = [
        GroupReturns(group, {each.id: episode_returns(each, rules.turn_discount) for each in episodes})
        for group, episodes in zip(groups, by_group, strict=True)
    ]
    advantages = algorithm_of(rules.algorithm).advantages(returns)
    return [_group_credit(*each) for each in zip(by_group, advantages, strict=True)]


def episode_returns(episode: Episode, turn_discount: float) -> dict[str, float | None]:
    """The return of each turn. None: no reward reaches it, or its answer was not chosen."""
    if episode.has_returns:
        return {turn.id: episode.rewards.get(turn.id) for turn in episode.session.turns}
    follows = {turn.id: turn.follows for turn in episode.session.turns}
    returns = turn_returns(follows, episode.rewards, turn_discount=turn_discount)
    return {**returns, **dict.fromkeys(masked_answers(episode), None)}


def flat_group_mask(rules: BatchRules, group: Group) -> MaskReason | None:
    """`zero_advantage` for a group without anything to learn from. None: it has something."""
    (credited,) = credit_groups([group], rules)
    has_signal = any(credit.advantage for _, turns in credited for credit in turns.values())
    return None if has_signal else "zero_advantage"


def make_group_filter(rules: BatchRules) -> GroupFilter | None:
    """What rejects groups: the user's function, and that there is nothing to learn from them, if the algorithm asks for
    it. None: nothing does."""
    if not rules.algorithm.dynamic_sampling:
        return rules.accept
    return lambda group: (rules.accept and rules.accept(group)) or flat_group_mask(rules, group)


def account_discarded(discarded: Sequence[Discarded]) -> Ledger:
    """The ledger of episodes that are not trained on."""
    return Ledger.sum(Ledger.all_masked(item.episode.session.num_sampled_tokens, item.mask) for item in discarded)


def account_unused(taken: TakenGroups) -> Ledger:
    """The ledger of what was played and never taken."""
    episodes = [episode for group in taken.groups for episode in group.episodes]
    unused = Ledger.sum(Ledger.all_masked(episode.session.num_sampled_tokens, "unused") for episode in episodes)
    return unused + account_discarded(taken.discarded)


def _group_credit(episodes: Sequence[Episode], advantages: Returns) -> list[tuple[Episode, Mapping[str, TurnCredit]]]:
    has_signal = any(value for turns in advantages.values() for value in turns.values())
    return [
        (episode, _credits(episode, advantages[episode.id], has_signal, not_chosen=masked_answers(episode)))
        for episode in episodes
    ]


def _credits(
    episode: Episode, advantages: Mapping[str, float | None], has_signal: bool, *, not_chosen: Collection[str]
) -> dict[str, TurnCredit]:
    flat = TurnCredit(advantage=None, mask="zero_advantage")
    credit = dict.fromkeys((turn.id for turn in episode.session.turns), TurnCredit(advantage=None, mask="no_credit"))
    for turn_id, value in advantages.items():
        if value is not None:
            credit[turn_id] = TurnCredit(advantage=value, mask=None) if has_signal else flat
    return {**credit, **dict.fromkeys(not_chosen, TurnCredit(advantage=None, mask="not_chosen"))}


def _named_credit(
    credited: Sequence[tuple[Episode, Mapping[str, TurnCredit]]], discarded: Sequence[Discarded]
) -> dict[str, float | str]:
    named: dict[str, float | str] = {}
    for _, turns in credited:
        for turn_id, credit in turns.items():
            named[turn_id] = credit.advantage if credit.advantage is not None else str(credit.mask)
    for item in discarded:
        named.update({turn.id: item.mask for turn in item.episode.session.turns})
    return named


def _staleness(groups: Sequence[Group], version: int) -> dict[int, int]:
    ages: Counter[int] = Counter()
    for group in groups:
        for episode in group.episodes:
            for turn in episode.session.turns:
                ages.update(version - sampled_by for sampled_by in turn.sampled.versions)
    return dict(sorted(ages.items()))
