"""Which members of a group are trained: flat groups, pairs, and episodes that a loss takes as a whole. Pure.

Knows: credit, trainable tokens, what an algorithm needs.  Knows not: returns, how advantages are made, rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain

from ludus.algorithms.base import TokenAdvantages
from ludus.algorithms.resolve import algorithm_of
from ludus.algorithms.settings import AlgorithmSettings
from ludus.episodes.export import TokenBounds, TurnCredit, trained_places
from ludus.episodes.ledger import MaskReason
from ludus.errors import UserError
from ludus.types import Episode

Credit = Mapping[str, TurnCredit]
"""By turn id."""
Members = Sequence[tuple[Episode, Credit]]
BoundsOf = Callable[[Episode], TokenBounds]


def count_trained(episode: Episode, credit: Credit, bounds: BoundsOf) -> int:
    """How many tokens are trained."""
    places = trained_places(episode.session, credit, bounds=bounds(episode), left_out=episode.left_out)
    return sum(map(len, places.values()))


def _is_flat(members: Members) -> bool:
    """Whether no token of the group has an advantage other than 0."""
    return not any(credit.teaches for _, turns in members for credit in turns.values())


def mask_unpaired(groups: Sequence[Members], algorithm: AlgorithmSettings, bounds: BoundsOf) -> list[Members]:
    """For algorithms that need sides: masks episodes with advantage 0, unless something else than the advantage trains
    them. For those that need pairs: masks turns with advantage 0, and whole groups whose trainable tokens are all on
    one side.

    Raises UserError if an episode that needs one side has several.
    """
    needs = algorithm_of(algorithm).needs
    if needs.sides:
        for episode, credit in chain.from_iterable(groups):
            _check_side(episode, credit, algorithm)
        groups = mask_flat(groups, algorithm)
    if not needs.pairs and (needs.flat_groups or not needs.sides):
        return list(groups)
    sided = [_masked(members, "not_paired", lambda credit: credit.mean == 0) for members in groups]
    if not needs.pairs:
        return sided
    return [
        members if _sides(members, bounds) >= {True, False} else _masked(members, "not_paired") for members in sided
    ]


def _check_side(episode: Episode, credit: Credit, algorithm: AlgorithmSettings) -> None:
    given = (each.advantage for each in credit.values() if each.advantage is not None)
    values = chain.from_iterable(each.advantages if isinstance(each, TokenAdvantages) else (each,) for each in given)
    signs = {(value > 0) - (value < 0) for value in values}
    if len(signs) > 1:
        raise UserError(
            f"algorithm.loss={algorithm.loss.kind} takes each episode as a whole for good or bad, and "
            f"algorithm.advantage={algorithm.advantage.kind} gives tokens of episode {episode.id!r} advantages of "
            "different signs; give all tokens of an episode one above 0, or one below 0, or 0"
        )


def only_measured(credit: Credit) -> dict[str, TurnCredit]:
    """The credit of an episode that has no side: advantage 0 for the turns that could have had one."""
    nothing = TurnCredit(advantage=0.0, mask=None)
    return {id_: nothing if each.mask in ("not_paired", "zero_advantage") else each for id_, each in credit.items()}


def _sides(members: Members, bounds: BoundsOf) -> set[bool]:
    """The signs of the advantages among trainable tokens: True for positive, False for negative."""
    trained = [credit for episode, credit in members if count_trained(episode, credit, bounds)]
    return {each.mean > 0 for credit in trained for each in credit.values() if each.mean}


def mask_flat(groups: Sequence[Members], algorithm: AlgorithmSettings) -> list[Members]:
    """Masks groups without any advantage, unless the algorithm trains them too."""
    if algorithm_of(algorithm).needs.flat_groups:
        return list(groups)
    return [_masked(members, "zero_advantage") if _is_flat(members) else members for members in groups]


def _masked(members: Members, reason: MaskReason, is_meant: Callable[[TurnCredit], bool] = lambda _: True) -> Members:
    """The members with `reason` as the mask of every turn that had an advantage and that `is_meant` selects."""
    mask = TurnCredit(advantage=None, mask=reason)
    return [
        (episode, {id_: mask if each.mask is None and is_meant(each) else each for id_, each in turns.items()})
        for episode, turns in members
    ]
