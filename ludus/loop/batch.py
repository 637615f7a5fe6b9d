"""Turns groups of episodes into the batch of one step, and accounts for every token they sampled. Pure.

Knows: rewards, the edges between turns, advantages, masks, packing.  Knows not: tensors, files, time.
Invariants: the order of the batch is that of group and member ids, whatever finished first;
every token of every episode handed in is trained once or masked for one named reason.

    rewards → returns of turns → advantages of all groups → weights of tokens → sequences → rows

Where advantages need more than returns (values of a critic, logprobs of a reference), the trainable tokens are packed
once before, and the trainer measures them.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import chain, pairwise
from types import MappingProxyType
from typing import TypeVar

from ludus.algorithms.base import NOTHING, GroupReturns, Memory, TurnAdvantages, are_equal
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
from ludus.errors import UserError
from ludus.loop.masks import BoundsOf, Members, count_trained, mask_flat, mask_unpaired, only_measured
from ludus.rollout.groups import Discarded, GroupFilter, TakenGroups, any_credit
from ludus.types import Episode, Group

logger = logging.getLogger(__name__)

T = TypeVar("T")
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
    """How many versions older a token may be than the weights it trains. None: any number."""
    accept: GroupFilter | None = None
    """The user's own filter. None: every group that can be trained on is accepted."""
    loss_weights: Mapping[str, float] = field(default_factory=dict)
    """Factor on the loss of the tokens of a dataset, by the dataset's name; 1 where none is given."""


@dataclass(frozen=True, slots=True)
class BuiltBatch:
    """A batch, and what became of everything that was given for it."""

    batch: Batch
    ledger: Ledger
    credit: Mapping[str, float | str]
    """By turn id: the turn's advantage (the mean over its tokens), or the reason why it is masked."""
    memory: Memory
    """What the algorithm remembers after this batch."""
    turns: Mapping[int, tuple[str, tuple[int, ...]]]
    """The turns of the rows by their number there: the turn's id, and the indices of its tokens in the rows among those
    it sampled."""
    staleness: Mapping[int, int]
    """How many sampled tokens are 0, 1, 2, … versions older than the weights they train."""
    reward_kl: RewardKl | None = None
    """The KL penalty that was subtracted from the rewards. None: the algorithm has none."""


def build_batch(
    taken: TakenGroups,
    rules: BatchRules,
    *,
    version: int,
    measured: Measured = _NOTHING,
    memory: Memory = NOTHING,
) -> BuiltBatch:
    """The batch that weights `version` are trained on next.

    measured: what the algorithm asked to have measured.  memory: what it remembers of earlier batches.
    """
    bounds, groups = _bounds(taken, rules, version), taken.trained
    origins = _origins(taken)
    lost = _reward_kl(groups, rules, measured, memory)
    credited, known = _advantages(groups, rules, bounds, measured, memory, lost)
    could_be_trained = mask_unpaired(credited, rules.algorithm, bounds)
    by_group = mask_flat(could_be_trained, rules.algorithm)
    # groups without an advantage count in the mean too: if one group of ten teaches, the step is a tenth as large
    counts = [count_trained(episode, credit, bounds) for members in could_be_trained for episode, credit in members]
    weights = iter(algorithm_of(rules.algorithm).weights(counts))
    parts = _cut(list(enumerate(by_group)), rules.algorithm.minibatches)
    rows: list[tuple[PackedRow, ...]] = []
    ledger = account_discarded(taken.discarded)
    numbers, turns = Numbers(), dict[int, tuple[str, tuple[int, ...]]]()
    for part in parts:
        sequences: list[TrainSequence] = []
        members = [(group, *each, next(weights)) for group, of_group in part for each in of_group]
        # where nothing is trained there is nothing to measure for
        measures = algorithm_of(rules.algorithm).needs.sides and any(weight for *_, weight in members)
        for group, episode, credit, weight in members:
            origin = origins.get(episode.id, OWN)
            export = partial(
                export_session,
                episode.session,
                style=rules.export_style,
                bounds=bounds(episode),
                left_out=episode.left_out,
                numbers=replace(numbers, group=group),
                origin=origin,
            )
            # the weights of all minibatches sum to their number; each has the share that its tokens have
            share = weight * len(parts) * rules.loss_weights.get(groups[group].source, 1.0)
            exported = export(credit, weight=share)
            ledger = ledger + _account(exported.ledger, origin)
            if measures and not weight and origin == OWN:
                exported = export(only_measured(credit), weight=0.0)
            sequences.extend(exported.sequences)
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
    """All tokens that can be trained, before their advantages are known, with weight 0."""
    sequences: list[TrainSequence] = []
    bounds = _bounds(taken, rules, version)
    for episode, numbers in _numbered(taken):
        exported = export_session(
            episode.session,
            any_credit(episode),
            weight=0.0,
            style=rules.export_style,
            bounds=bounds(episode),
            left_out=episode.left_out,
            numbers=numbers,
        )
        sequences.extend(exported.sequences)
    return Batch.of(pack(sequences, row_tokens=rules.row_tokens), version)


def places_to_measure(taken: TakenGroups, rules: BatchRules, *, version: int) -> dict[str, tuple[int, ...]]:
    """The tokens of `rows_to_measure`: for each turn id, their indices among the tokens that the turn sampled."""
    places: dict[str, tuple[int, ...]] = {}
    bounds = _bounds(taken, rules, version)
    for episode, _ in _numbered(taken):
        credit = any_credit(episode)
        places |= trained_places(episode.session, credit, bounds=bounds(episode), left_out=episode.left_out)
    return places


def by_turn_id(taken: TakenGroups, numbers: Mapping[int, TokenNumbers]) -> Measured:
    """What was measured, by turn id; `numbers` has it by the turn's number in `rows_to_measure`."""
    ids = [turn.id for episode, _ in _numbered(taken) for turn in episode.session.turns]
    return {ids[number]: each for number, each in numbers.items()}


def token_bounds(algorithm: AlgorithmSettings) -> TokenBounds:
    """Which tokens the algorithm trains, whatever their age."""
    return TokenBounds(None, algorithm.max_sequence_tokens, algorithm.mask_truncated_completions)


def _bounds(taken: TakenGroups, rules: BatchRules, version: int) -> BoundsOf:
    # replayed episodes had their age checked when they were drawn, and demonstrations have no age
    ageless, origins = token_bounds(rules.algorithm), _origins(taken)
    stale_before = None if rules.max_token_age is None else version - rules.max_token_age
    bounds = replace(ageless, stale_before=stale_before)
    return lambda episode: ageless if episode.id in origins else bounds


def _origins(taken: TakenGroups) -> dict[str, int]:
    """By episode id, for the episodes that were not played for this batch: demonstrated or replayed."""
    demonstrated = [episode.id for group in taken.groups for episode in group.demonstrations]
    replayed = [episode.id for group in taken.replayed for episode in group.episodes]
    return {**dict.fromkeys(demonstrated, DEMONSTRATED), **dict.fromkeys(replayed, REPLAYED)}


def _account(exported: Ledger, origin: int) -> Ledger:
    """The ledger of one episode; tokens that were not sampled for this batch are counted apart from those that were."""
    if origin == OWN:
        return exported
    return Ledger(replayed=exported.trained) if origin == REPLAYED else Ledger(demonstrated=exported.trained)


def _numbered(taken: TakenGroups) -> Iterator[tuple[Episode, Numbers]]:
    """All members in the order of the batch, each with the numbers of its first turn and episode."""
    numbers = Numbers()
    for episode in (each for group in taken.trained for each in _members(group)):
        yield episode, numbers
        numbers = numbers.after(episode.session)


def _cut(groups: Sequence[T], count: int) -> list[Sequence[T]]:
    """The groups in `count` consecutive parts whose sizes differ by at most one; in fewer if there are fewer groups."""
    if count > len(groups) > 0:
        _warn_of_fewer(count, len(groups))
    count = max(1, min(count, len(groups)))
    ends = [len(groups) * number // count for number in range(count + 1)]
    return [groups[start:end] for start, end in pairwise(ends)]


@cache
def _warn_of_fewer(minibatches: int, num_groups: int) -> None:
    """Once for each number of groups."""
    logger.warning("algorithm.minibatches=%d, and a batch has only %d groups: one step each", minibatches, num_groups)


def credit_groups(groups: Sequence[Group], rules: BatchRules) -> list[Members]:
    """The members of each group, ordered by id, each with the credit of its turns."""
    bounds = token_bounds(rules.algorithm)
    return mask_flat(_advantages(groups, rules, lambda _: bounds, _NOTHING, NOTHING)[0], rules.algorithm)


def _advantages(
    groups: Sequence[Group],
    rules: BatchRules,
    bounds: BoundsOf,
    measured: Measured,
    memory: Memory,
    lost: RewardKl | None = None,
) -> tuple[list[Members], Memory]:
    """As `credit_groups`, but before groups with nothing to learn from are masked; and the algorithm's new memory."""
    penalties = _NO_PENALTIES if lost is None else lost.penalties
    returns = [
        replace(_returns(group, rules, measured, penalties), trainable=_trainable(group, bounds)) for group in groups
    ]
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


def _trainable(group: Group, bounds: BoundsOf) -> dict[str, int]:
    """By turn id: how many tokens can be trained, whatever their advantage."""
    found: dict[str, int] = {}
    for each in _members(group):
        places = trained_places(each.session, any_credit(each), bounds=bounds(each), left_out=each.left_out)
        found |= {turn_id: len(chosen) for turn_id, chosen in places.items()}
    return found


def _members(group: Group) -> list[Episode]:
    return sorted((*group.episodes, *group.demonstrations), key=lambda episode: episode.id)


def _reward_kl(groups: Sequence[Group], rules: BatchRules, measured: Measured, memory: Memory) -> RewardKl | None:
    settings = rules.algorithm.reward_kl
    if settings is None:
        return None
    # greedy members are only a baseline, and demonstrations are not the policy's: neither says how far it has moved
    episodes = (each for group in groups for each in group.episodes if not each.is_greedy)
    return reward_kl(episodes, measured, estimator=settings.estimator, coef=reward_kl_coef(settings, memory))


def _returns(
    group: Group,
    rules: BatchRules,
    measured: Measured = _NOTHING,
    penalties: Mapping[str, Floats] = _NO_PENALTIES,
    *,
    of_task: bool = False,
) -> GroupReturns:
    """of_task: of the rewards as the task gave them, without the length penalty."""
    members = tuple(each if of_task else _shaped(each, rules, penalties) for each in _members(group))
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
    """The episode with its rewards reduced by the length penalty and by these token penalties, on turns that have a
    return."""
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
    """DAPO's filter: `zero_advantage` for a group of several members from which nothing can be learned, or, where the
    algorithm does not compare members, whose returns are equal. None: keep the group.

    It judges what the task says of the answers, before penalties for their length and their divergence; or the metric
    that the settings name. Raises UserError if an episode has no such metric.
    Source: DAPO (arXiv 2503.14476) eq. 11; metrics as verl's `algorithm.filter_groups.metric`.
    """
    algorithm, metric = algorithm_of(rules.algorithm), rules.algorithm.dynamic_sampling_metric
    returns = _returns(group, rules, of_task=metric is None)
    if metric not in (None, "reward"):
        is_flat = are_equal(_metric(each, metric) for each in group.episodes)
    else:
        is_flat = algorithm.is_flat(returns) or (algorithm.needs.members == 1 and returns.is_flat)
    return "zero_advantage" if len(returns.means()) > 1 and is_flat else None


def _metric(episode: Episode, name: str) -> float:
    if name not in episode.metrics:
        raise UserError(
            f"algorithm.dynamic_sampling_metric={name!r}: episode {episode.id!r} has no such metric; it has "
            f"{', '.join(episode.metrics) or 'none'}. Return it as Result(metrics={{{name!r}: …}}), or leave it out to "
            "compare rewards"
        )
    return episode.metrics[name]


def can_teach(rules: BatchRules, group: Group) -> bool:
    """Whether something can be learned from the group: its members differ, or the algorithm does not need them to."""
    algorithm, returns = algorithm_of(rules.algorithm), _returns(group, rules)
    return algorithm.needs.flat_groups or len(returns.means()) < 2 or not algorithm.is_flat(returns)


def make_group_filter(rules: BatchRules) -> GroupFilter | None:
    """Rejects groups whose greedy baseline is missing, that the user's function refuses, or, with dynamic sampling,
    from which nothing can be learned. None: no group is rejected."""
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
    """The ledger of what was played and never went into a batch."""
    episodes = [episode for group in taken.groups for episode in group.episodes]
    unused = Ledger.sum(Ledger.all_masked(episode.session.num_sampled_tokens, "unused") for episode in episodes)
    return unused + account_discarded(taken.discarded)


def _credits(
    episode: Episode, advantages: TurnAdvantages, reason_of: Mapping[str, MaskReason] = MappingProxyType({})
) -> dict[str, TurnCredit]:
    """Credit of every turn. reason_of: why a turn has no advantage although it has a return."""
    credit = dict.fromkeys((turn.id for turn in episode.session.turns), TurnCredit(advantage=None, mask="no_credit"))
    for turn_id, value in advantages.items():
        if value is not None:
            credit[turn_id] = TurnCredit(advantage=value, mask=None)
        elif turn_id in reason_of:
            credit[turn_id] = TurnCredit(advantage=None, mask=reason_of[turn_id])
    return {**credit, **dict.fromkeys(masked_answers(episode), TurnCredit(advantage=None, mask="not_chosen"))}


def _unused(episode: Episode, returns: GroupReturns) -> dict[str, MaskReason]:
    """By turn id: the reason to name if a turn with a return is given no advantage."""
    reason: MaskReason = "zero_advantage" if returns.is_flat else "not_paired"
    return {turn_id: reason for turn_id, value in returns.returns[episode.id].items() if value is not None}


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
