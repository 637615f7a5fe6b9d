"""Groups of episodes become the batch of one step, and an account of every token they sampled. Pure.

Knows: rewards, the edges between turns, advantages, masks, packing.  Knows not: tensors, files, time.
Invariants: the order of the batch is that of group and member ids, whatever finished first;
every token of every episode handed in is trained once or masked for one named reason.

    rewards → returns of turns → advantages of all groups → weights of tokens → sequences → rows

Where advantages are made of more than returns, what can be trained is packed before, and the trainer measures it.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import chain, pairwise
from types import MappingProxyType
from typing import TypeVar

from ludus.algorithms.base import NOTHING, GroupReturns, Memory, TurnAdvantages
from ludus.algorithms.measured import Floats, Measured, TokenNumbers
from ludus.algorithms.memory import remember_reward_kl, reward_kl_coef
from ludus.algorithms.overlong import overlong_penalty
from ludus.algorithms.pack import DEMONSTRATED, OWN, REPLAYED, Batch, PackedRow, TrainSequence, pack
from ludus.algorithms.resolve import algorithm_of
from ludus.algorithms.returns import turn_returns
from ludus.algorithms.reward_kl import RewardKl, reward_kl
from ludus.algorithms.settings import AlgorithmSettings
from ludus.episodes.export import ExportStyle, Numbers, TokenBounds, TurnCredit, export_session, trained_places
from ludus.episodes.ledger import Ledger, MaskReason
from ludus.episodes.reward import masked_answers
from ludus.rollout.groups import Discarded, GroupFilter, TakenGroups
from ludus.types import Episode, Group

logger = logging.getLogger(__name__)

T = TypeVar("T")
Credit = Mapping[str, TurnCredit]
"""By turn id."""
Members = Sequence[tuple[Episode, Credit]]
BoundsOf = Callable[[Episode], TokenBounds]
_NOTHING: Measured = {}
_NO_PENALTIES: Mapping[str, Floats] = {}


@dataclass(frozen=True, slots=True)
class BatchRules:
    """How credit becomes a batch."""

    algorithm: AlgorithmSettings
    turn_discount: float
    export_style: ExportStyle
    row_tokens: int
    max_token_age: int | None
    """Versions by which a trained token may be older than the weights it trains. None: any number."""
    accept: GroupFilter | None = None
    """Of the user. None: every group is accepted that can be trained on."""
    loss_weights: Mapping[str, float] = field(default_factory=dict)
    """What the tokens of a source of rows weigh, by its name; 1 for others."""


@dataclass(frozen=True, slots=True)
class BuiltBatch:
    """A batch, and what became of everything that was handed in for it."""

    batch: Batch
    ledger: Ledger
    credit: Mapping[str, float | str]
    """By turn id: its advantage, the mean over its tokens, or the reason why it is masked."""
    memory: Memory
    """What the algorithm knows after it."""
    turns: Mapping[int, tuple[str, tuple[int, ...]]]
    """By its number in the rows the id of each turn that is trained, and the places of its trained tokens among those
    that it sampled."""
    staleness: Mapping[int, int]
    """Sampled tokens by how many versions they are older than the weights they train."""
    reward_kl: RewardKl | None = None
    """What the divergence from the first weights took off the rewards. None: nothing is taken off for it."""


def build_batch(
    taken: TakenGroups,
    rules: BatchRules,
    *,
    version: int,
    measured: Measured = _NOTHING,
    memory: Memory = NOTHING,
) -> BuiltBatch:
    """The batch that weights `version` are trained on next.

    measured: what the algorithm asks for.  memory: what it knows of the batches before.
    """
    bounds, groups = _bounds(taken, rules, version), taken.trained
    origins = _origins(taken)
    lost = _reward_kl(groups, rules, measured, memory)
    credited, known = _advantages(groups, rules, measured, memory, lost)
    could_be_trained = _mask_unpaired(credited, rules, bounds)
    by_group = _mask_flat(could_be_trained, rules)
    # a group that teaches nothing counts in the mean all the same: what one of ten teaches moves the weights a tenth
    counts = [_count(episode, credit, bounds) for members in could_be_trained for episode, credit in members]
    weights = iter(algorithm_of(rules.algorithm).weights(counts))
    parts = _cut(list(enumerate(by_group)), rules.algorithm.minibatches)
    rows: list[tuple[PackedRow, ...]] = []
    ledger = account_discarded(taken.discarded)
    numbers, turns = Numbers(), dict[int, tuple[str, tuple[int, ...]]]()
    for part in parts:
        sequences: list[TrainSequence] = []
        for group, (episode, credit) in ((group, each) for group, members in part for each in members):
            origin = origins.get(episode.id, OWN)
            # together the minibatches weigh as much as there are of them, each what its tokens weigh
            exported = export_session(
                episode.session,
                credit,
                weight=next(weights) * len(parts) * rules.loss_weights.get(groups[group].source, 1.0),
                style=rules.export_style,
                bounds=bounds(episode),
                left_out=episode.left_out,
                numbers=replace(numbers, group=group),
                origin=origin,
            )
            sequences.extend(exported.sequences)
            ledger = ledger + _account(exported.ledger, origin)
            for number, turn in enumerate(episode.session.turns, numbers.first_turn):
                if turn.id in exported.places:
                    turns[number] = (turn.id, exported.places[turn.id])
            numbers = numbers.after(episode.session)
        rows.append(pack(sequences, row_tokens=rules.row_tokens))
    own = [each for each in chain.from_iterable(by_group) if each[0].id not in origins]
    return BuiltBatch(
        batch=Batch(tuple(rows), version),
        ledger=ledger,
        credit=_named_credit(own, taken.discarded),
        memory=known,
        turns=turns,
        staleness=_staleness(taken.groups, version),
        reward_kl=lost,
    )


def rows_to_measure(taken: TakenGroups, rules: BatchRules, *, version: int) -> Batch:
    """All tokens that can be trained, whatever their advantages will be; they weigh nothing yet."""
    sequences: list[TrainSequence] = []
    bounds = _bounds(taken, rules, version)
    for episode, numbers in _numbered(taken):
        exported = export_session(
            episode.session,
            _any_credit(episode, rules),
            weight=0.0,
            style=rules.export_style,
            bounds=bounds(episode),
            left_out=episode.left_out,
            numbers=numbers,
        )
        sequences.extend(exported.sequences)
    return Batch.of(pack(sequences, row_tokens=rules.row_tokens), version)


def places_to_measure(taken: TakenGroups, rules: BatchRules, *, version: int) -> dict[str, tuple[int, ...]]:
    """The tokens of `rows_to_measure` by the ids of turns, as their places among what each sampled."""
    places: dict[str, tuple[int, ...]] = {}
    bounds = _bounds(taken, rules, version)
    for episode, _ in _numbered(taken):
        credit = _any_credit(episode, rules)
        places |= trained_places(episode.session, credit, bounds=bounds(episode), left_out=episode.left_out)
    return places


def _any_credit(episode: Episode, rules: BatchRules) -> dict[str, TurnCredit]:
    """What every turn that has a return may be given."""
    returns = episode_returns(episode, rules.turn_discount)
    return _credits(episode, {turn_id: None if value is None else 0.0 for turn_id, value in returns.items()})


def by_turn_id(taken: TakenGroups, numbers: Mapping[int, TokenNumbers]) -> Measured:
    """What was measured of the turns that have these numbers in `rows_to_measure`."""
    ids = [turn.id for episode, _ in _numbered(taken) for turn in episode.session.turns]
    return {ids[number]: each for number, each in numbers.items()}


def _bounds(taken: TakenGroups, rules: BatchRules, version: int) -> BoundsOf:
    stale_before = None if rules.max_token_age is None else version - rules.max_token_age
    algorithm = rules.algorithm
    bounds = TokenBounds(stale_before, algorithm.max_sequence_tokens, algorithm.mask_truncated_completions)
    # the age of what is replayed was judged when it was drawn, and what an expert gave has none
    ageless, origins = replace(bounds, stale_before=None), _origins(taken)
    return lambda episode: ageless if episode.id in origins else bounds


def _origins(taken: TakenGroups) -> dict[str, int]:
    """By the id of each episode that was not played for this batch."""
    demonstrated = [episode.id for group in taken.groups for episode in group.demonstrations]
    replayed = [episode.id for group in taken.replayed for episode in group.episodes]
    return {**dict.fromkeys(demonstrated, DEMONSTRATED), **dict.fromkeys(replayed, REPLAYED)}


def _account(exported: Ledger, origin: int) -> Ledger:
    """What becomes of the tokens of an episode: those that were not sampled for this batch stand beside the law."""
    if origin == OWN:
        return exported
    return Ledger(replayed=exported.trained) if origin == REPLAYED else Ledger(demonstrated=exported.trained)


def _numbered(taken: TakenGroups) -> Iterator[tuple[Episode, Numbers]]:
    """All members, in the order of the batch."""
    numbers = Numbers()
    for episode in (each for group in taken.trained for each in _members(group)):
        yield episode, numbers
        numbers = numbers.after(episode.session)


def _cut(groups: Sequence[T], count: int) -> list[Sequence[T]]:
    """In `count` parts of neighbours, whose sizes differ by at most one; in fewer if there are fewer groups."""
    if count > len(groups) > 0:
        _warn_of_fewer(count, len(groups))
    count = max(1, min(count, len(groups)))
    ends = [len(groups) * number // count for number in range(count + 1)]
    return [groups[start:end] for start, end in pairwise(ends)]


@cache
def _warn_of_fewer(minibatches: int, num_groups: int) -> None:
    """Once for each number of groups."""
    logger.warning("algorithm.minibatches=%d, and a batch has only %d groups: one step each", minibatches, num_groups)


def _count(episode: Episode, credit: Credit, bounds: BoundsOf) -> int:
    """Tokens that are trained."""
    places = trained_places(episode.session, credit, bounds=bounds(episode), left_out=episode.left_out)
    return sum(map(len, places.values()))


def credit_groups(groups: Sequence[Group], rules: BatchRules) -> list[Members]:
    """The members of each group, in the order of ids, with what the loss makes of each of their turns."""
    return _mask_flat(_advantages(groups, rules, _NOTHING, NOTHING)[0], rules)


def _advantages(
    groups: Sequence[Group], rules: BatchRules, measured: Measured, memory: Memory, lost: RewardKl | None = None
) -> tuple[list[Members], Memory]:
    """As `credit_groups`, with the advantages of groups that teach nothing; and what is known after them."""
    penalties = _NO_PENALTIES if lost is None else lost.penalties
    returns = [_returns(group, rules, measured, penalties) for group in groups]
    advantages, known = algorithm_of(rules.algorithm).estimate(returns, memory)
    if rules.algorithm.reward_kl is not None and lost is not None:
        known = remember_reward_kl(rules.algorithm.reward_kl, known, lost)
    credited: list[Members] = [
        [
            (episode, _credits(episode, of_group[episode.id], _unused(episode, given)))
            for episode in given.group.episodes
        ]
        for given, of_group in zip(returns, advantages, strict=True)
    ]
    return credited, known


def _members(group: Group) -> list[Episode]:
    return sorted((*group.episodes, *group.demonstrations), key=lambda episode: episode.id)


def _reward_kl(groups: Sequence[Group], rules: BatchRules, measured: Measured, memory: Memory) -> RewardKl | None:
    settings = rules.algorithm.reward_kl
    if settings is None:
        return None
    # nothing of the policy's are the likeliest answers, which others are compared with, and what it was shown
    episodes = (each for group in groups for each in group.episodes if not each.is_greedy)
    return reward_kl(episodes, measured, estimator=settings.estimator, coef=reward_kl_coef(settings, memory))


def _returns(
    group: Group,
    rules: BatchRules,
    measured: Measured = _NOTHING,
    penalties: Mapping[str, Floats] = _NO_PENALTIES,
) -> GroupReturns:
    members = tuple(_shaped(each, rules, penalties) for each in _members(group))
    shaped = replace(group, episodes=members)
    returns = {each.id: episode_returns(each, rules.turn_discount) for each in shaped.episodes}
    turn_ids = [turn_id for turns in returns.values() for turn_id in turns]
    return GroupReturns(
        shaped,
        returns,
        rules.turn_discount,
        measured={turn_id: measured[turn_id] for turn_id in turn_ids if turn_id in measured},
        penalties={turn_id: penalties[turn_id] for turn_id in turn_ids if turn_id in penalties},
    )


def _shaped(episode: Episode, rules: BatchRules, penalties: Mapping[str, Floats]) -> Episode:
    """The episode, where the rewards of answers that a return reaches lose what the algorithm takes off for length, and
    these penalties of tokens."""
    overlong = rules.algorithm.overlong
    if overlong is None and not penalties:
        return episode
    returns = episode_returns(episode, rules.turn_discount)
    taken_off = {
        turn.id: math.fsum(penalties.get(turn.id, ()))
        + (0.0 if overlong is None else overlong_penalty(len(turn.sampled.token_ids), overlong))
        for turn in episode.session.turns
        if returns[turn.id] is not None
    }
    less = {turn_id: episode.rewards.get(turn_id, 0.0) - lost for turn_id, lost in taken_off.items() if lost}
    whole = None if episode.reward is None else episode.reward - math.fsum(taken_off.values())
    return replace(episode, rewards={**episode.rewards, **less}, reward=whole)


def episode_returns(episode: Episode, turn_discount: float) -> dict[str, float | None]:
    """The return of each turn. None: no reward reaches it, or its answer was not chosen."""
    if episode.has_returns:
        return {turn.id: episode.rewards.get(turn.id) for turn in episode.session.turns}
    follows = {turn.id: turn.follows for turn in episode.session.turns}
    returns = turn_returns(follows, episode.rewards, turn_discount=turn_discount)
    return {**returns, **dict.fromkeys(masked_answers(episode), None)}


def flat_group_mask(rules: BatchRules, group: Group) -> MaskReason | None:
    """`zero_advantage` for a group of several members that have nothing to teach, or whose returns agree where nothing
    compares them (DAPO's filter). None: there is more to it, or there is one member."""
    algorithm, returns = algorithm_of(rules.algorithm), _returns(group, rules)
    is_flat = algorithm.is_flat(returns) or (algorithm.needs.members == 1 and returns.is_flat)
    return "zero_advantage" if len(returns.means()) > 1 and is_flat else None


def can_teach(rules: BatchRules, group: Group) -> bool:
    """Its members have something to teach, or the algorithm learns from groups in which they have not."""
    algorithm, returns = algorithm_of(rules.algorithm), _returns(group, rules)
    return algorithm.needs.flat_groups or len(returns.means()) < 2 or not algorithm.is_flat(returns)


def make_group_filter(rules: BatchRules) -> GroupFilter | None:
    """What rejects groups: that what they are compared with is missing, the user's function, and that there is nothing
    to learn from them, if the algorithm asks for it. None: nothing does."""
    filters: list[GroupFilter] = [_no_baseline] if algorithm_of(rules.algorithm).needs.greedy else []
    filters += [] if rules.accept is None else [rules.accept]
    filters += [partial(flat_group_mask, rules)] if rules.algorithm.dynamic_sampling else []
    if not filters:
        return None
    return lambda group: next((mask for each in filters if (mask := each(group)) is not None), None)


def _no_baseline(group: Group) -> MaskReason | None:
    return None if any(episode.is_greedy for episode in group.episodes) else "no_baseline"


def account_discarded(discarded: Sequence[Discarded]) -> Ledger:
    """The ledger of episodes that are not trained on."""
    return Ledger.sum(Ledger.all_masked(item.episode.session.num_sampled_tokens, item.mask) for item in discarded)


def account_unused(taken: TakenGroups) -> Ledger:
    """The ledger of what was played and never taken."""
    episodes = [episode for group in taken.groups for episode in group.episodes]
    unused = Ledger.sum(Ledger.all_masked(episode.session.num_sampled_tokens, "unused") for episode in episodes)
    return unused + account_discarded(taken.discarded)


def _credits(
    episode: Episode, advantages: TurnAdvantages, reason_of: Mapping[str, MaskReason] = MappingProxyType({})
) -> dict[str, TurnCredit]:
    """reason_of: why turns without an advantage have none, where it is not that no return reaches them."""
    credit = dict.fromkeys((turn.id for turn in episode.session.turns), TurnCredit(advantage=None, mask="no_credit"))
    for turn_id, value in advantages.items():
        if value is not None:
            credit[turn_id] = TurnCredit(advantage=value, mask=None)
        elif turn_id in reason_of:
            credit[turn_id] = TurnCredit(advantage=None, mask=reason_of[turn_id])
    return {**credit, **dict.fromkeys(masked_answers(episode), TurnCredit(advantage=None, mask="not_chosen"))}


def _unused(episode: Episode, returns: GroupReturns) -> dict[str, MaskReason]:
    """Why turns with a return have no advantage, if they have none."""
    reason: MaskReason = "zero_advantage" if returns.is_flat else "not_paired"
    return {turn_id: reason for turn_id, value in returns.returns[episode.id].items() if value is not None}


def _is_flat(members: Members) -> bool:
    """No token of the group has an advantage: there is nothing to learn from it."""
    return not any(credit.teaches for _, turns in members for credit in turns.values())


def _mask_unpaired(groups: Sequence[Members], rules: BatchRules, bounds: BoundsOf) -> list[Members]:
    """The groups, of which turns on neither side are masked, and those with tokens to train on one side alone, if the
    algorithm needs both."""
    if not algorithm_of(rules.algorithm).needs.pairs:
        return list(groups)
    sided = [_masked(members, "not_paired", lambda credit: credit.mean == 0) for members in groups]
    return [
        members if _sides(members, bounds) >= {True, False} else _masked(members, "not_paired") for members in sided
    ]


def _sides(members: Members, bounds: BoundsOf) -> set[bool]:
    """Whether there are tokens to train of positive advantage (True), and of negative one (False)."""
    trained = [credit for episode, credit in members if _count(episode, credit, bounds)]
    return {each.mean > 0 for credit in trained for each in credit.values() if each.mean}


def _mask_flat(groups: Sequence[Members], rules: BatchRules) -> list[Members]:
    """The groups, of which those without anything to learn from are masked, unless the algorithm trains them too."""
    if algorithm_of(rules.algorithm).needs.flat_groups:
        return list(groups)
    return [_masked(members, "zero_advantage") if _is_flat(members) else members for members in groups]


def _masked(members: Members, reason: MaskReason, is_meant: Callable[[TurnCredit], bool] = lambda _: True) -> Members:
    """Without the turns that had an advantage, if they are meant."""
    mask = TurnCredit(advantage=None, mask=reason)
    return [
        (episode, {id_: mask if each.mask is None and is_meant(each) else each for id_, each in turns.items()})
        for episode, turns in members
    ]


def _named_credit(credited: Members, discarded: Sequence[Discarded]) -> dict[str, float | str]:
    named: dict[str, float | str] = {}
    for _, turns in credited:
        for turn_id, credit in turns.items():
            named[turn_id] = credit.mean if credit.mean is not None else str(credit.mask)
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
