"""What an algorithm is made of: one rule of each table (estimator, loss, correction, normaliser), composed.

Knows: groups, returns, tensors by their methods.  Knows not: settings of a run, models, torch.
Glossary. pi: policy under training; mu: policy that sampled; prox: policy that a batch began with; A: advantage;
w: share of a token in the loss of the optimizer batch, so that losses of rows add up. N: trained tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from ludus.algorithms.measured import Floats, Measured
from ludus.errors import InternalError
from ludus.import_strings import import_object
from ludus.settings import Choice
from ludus.types import Group

if TYPE_CHECKING:
    from torch import Tensor

Returns = Mapping[str, Mapping[str, float | None]]
"""By episode id and turn id. None: no return reaches the turn."""
Memory = Mapping[str, float]
"""Numbers that an algorithm remembers of earlier batches, by name; a checkpoint keeps them."""
NOTHING: Memory = {}
# Returns whose spread is below this share of the largest one count as equal: rounding alone makes a spread of about
# 1e-16, and a true spread this small would be noise in the returns.
LEAST_SPREAD = 1e-9
LossMetrics = dict[str, "Tensor"]
"""By name: a number for each token, shape (N,), whose mean is shown; or a scalar, already the mean over tokens (the
maximum, if the name ends in `_max`)."""


def are_equal(values: Iterable[float]) -> bool:
    """Whether rewards or returns are all equal, up to rounding: 0.1 + 0.2 and 0.3 are."""
    found = list(values)
    return not found or max(found) - min(found) <= LEAST_SPREAD * max(map(abs, found))


def is_at_least(value: float, bound: float) -> bool:
    """Whether a reward, or a mean of rewards, reaches a bound, up to rounding."""
    return value >= bound or are_equal((value, bound))


@dataclass(frozen=True, slots=True)
class TokenAdvantages:
    """Credit of a turn for each of its measured tokens, in their order."""

    advantages: Floats
    values: Floats | None = None
    """The critic's values as measured, and the targets that it is trained towards. None: there is no critic."""
    value_targets: Floats | None = None

    def __post_init__(self) -> None:
        columns = [self.advantages, *(each for each in (self.values, self.value_targets) if each is not None)]
        if any(len(column) != len(self.advantages) for column in columns):
            raise InternalError(f"columns of one turn have the lengths {[len(column) for column in columns]}")
        if not all(math.isfinite(number) for column in columns for number in column):
            raise InternalError("advantages, values and their targets must be finite numbers")

    @property
    def mean(self) -> float:
        """Of the advantages."""
        return math.fsum(self.advantages) / len(self.advantages)


TurnAdvantages = Mapping[str, float | TokenAdvantages | None]
"""By turn id: one advantage for all tokens of the turn, or one for each token. None: the turn has no credit."""
Advantages = Mapping[str, TurnAdvantages]
"""By episode id."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What the functions of a rule need to be given; `a | b` is what both need."""

    members: int = 1
    """The smallest number of members with returns that a group must have."""
    may_be_turns: bool = False
    """A lone episode is enough if its turns can be compared instead: several answers to one prompt, each rewarded."""
    proximal: bool = False
    """Logprobs under the weights before the batch."""
    reference: bool = False
    """Logprobs under the initial weights of the training."""
    ages: bool = False
    """How many versions older each token is than the weights before the batch."""
    minibatch: bool = False
    """All tokens of a minibatch at once, which costs one more forward pass. False: any part of them is enough."""
    entropy: bool = False
    """The entropies, with their gradient."""
    pairs: bool = False
    """Groups that have trained tokens of positive and of negative advantage; others are masked."""
    sides: bool = False
    """Episodes with one sign of advantage each; those of advantage 0 are only measured, and count in no mean."""
    greedy: bool = False
    """One more member in each group, which is sampled greedily."""
    flat_groups: bool = False
    """Groups without any advantage too: their tokens have a gradient, or count, all the same."""

    teacher: bool = False
    """A teacher's scores of all trainable tokens, before advantages are computed."""
    measured: frozenset[str] = frozenset()
    """Fields of `TokenNumbers` that the trainer must measure before advantages are computed."""

    def __or__(self, other: Needs) -> Needs:
        one, two = asdict(self), asdict(other)
        return Needs(max(one.pop("members"), two.pop("members")), **{name: one[name] | two[name] for name in one})


@dataclass(frozen=True, slots=True)
class GroupReturns:
    """A group, and the return of each turn of each of its members."""

    group: Group
    """Demonstrations are among its episodes here."""
    returns: Returns
    """Members in the order of their ids."""
    turn_discount: float = 1.0
    """From one turn to the next; already applied to the returns."""
    measured: Measured = field(default_factory=dict)
    """By turn id, of turns that can be trained. Empty: the algorithm asked for no measurement."""
    penalties: Mapping[str, Floats] = field(default_factory=dict)
    """By turn id: for each measured token the penalty that its turn's reward was already reduced by. Empty: none."""
    trainable: Mapping[str, int] | None = None
    """By turn id: number of tokens that can be trained; turns without any are left out. None: all sampled tokens."""

    def known(self) -> Iterator[tuple[str, str, float]]:
        """Member, turn and return of every turn that has one."""
        for member, turns in self.returns.items():
            yield from ((member, turn_id, value) for turn_id, value in turns.items() if value is not None)

    def means(self) -> dict[str, float]:
        """The mean of each member's returns; members without returns are left out."""
        values: dict[str, list[float]] = {}
        for member, _, value in self.known():
            values.setdefault(member, []).append(value)
        return {member: math.fsum(each) / len(each) for member, each in values.items()}

    def lengths(self) -> dict[tuple[str, str], int]:
        """Number of tokens that can be trained, by member and turn."""
        known = self.trainable
        return {
            (episode.id, turn.id): len(turn.sampled.token_ids) if known is None else known.get(turn.id, 0)
            for episode in self.group.episodes
            for turn in episode.session.turns
        }

    @property
    def is_flat(self) -> bool:
        """All returns are equal, up to rounding."""
        return are_equal(value for _, _, value in self.known())

    def map(self, advantage: Callable[[str, str, float], float | None]) -> Returns:
        """Each return replaced by `advantage(member, turn, return)`; None stays None."""
        return {
            member: {
                turn_id: None if value is None else advantage(member, turn_id, value)
                for turn_id, value in turns.items()
            }
            for member, turns in self.returns.items()
        }


@dataclass(frozen=True, slots=True)
class LossInputs:
    """What a loss is given of N trained tokens: all of a minibatch if the rule needs that, else part of a row. Shape
    (N,), fp32 unless said otherwise."""

    logprobs_N: Tensor
    """Under the weights being trained, with a gradient."""
    sampled_logprobs_N: Tensor
    """As recorded when the tokens were sampled."""
    proximal_logprobs_N: Tensor | None
    """Under the weights before the batch. None: not needed."""
    reference_logprobs_N: Tensor | None
    """Under the initial weights of the training. None: not needed."""
    advantages_N: Tensor
    weights_N: Tensor
    entropies_N: Tensor | None = None
    """Under the weights being trained; with a gradient if a rule needs it."""
    turns_N: Tensor | None = None
    """Numbers of each token's turn, episode and group, int64. None: these are not all tokens of a minibatch."""
    episodes_N: Tensor | None = None
    groups_N: Tensor | None = None
    origins_N: Tensor | None = None
    """Where each token comes from (see `pack`), int64. None: all were sampled for this batch."""
    ages_N: Tensor | None = None
    """How many versions older each token is than the weights before the batch, int64. None: not needed."""

    @property
    def old_logprobs_N(self) -> Tensor:  # noqa: N802  (the suffix is the shape)
        """The denominator of ratios: the proximal policy's logprobs if there are any, else the sampler's."""
        return self.sampled_logprobs_N if self.proximal_logprobs_N is None else self.proximal_logprobs_N.detach()


def no_needs(_: Any) -> Needs:
    """For rules that need nothing, whatever their settings."""
    return Needs()


def each_token(_: Any) -> str:
    """For losses of single tokens, whatever their settings."""
    return "token"


@dataclass(frozen=True, slots=True)
class LossTerms:
    """A loss as the terms of its tokens, which sum to it, and what is shown of them."""

    loss_N: Tensor
    """Each token's term: weighted, corrected, with everything that the settings add; with a gradient."""
    ratio_N: Tensor
    """pi / old as the loss used it, of the token or as the mean over its turn or episode; without gradient, like all
    fields below."""
    weights_N: Tensor
    """What the terms were multiplied by: the normaliser's weights, of the tokens that the correction counts."""
    factor_N: Tensor | None
    """The factor on the policy loss: the correction, or 0 if the token is left out. None: there is none."""
    metrics: LossMetrics

    @property
    def shown(self) -> LossMetrics:
        """The metrics as scalars: means over the tokens."""
        return {name: each.mean() if getattr(each, "ndim", 0) else each for name, each in self.metrics.items()}

    @property
    def of_tokens(self) -> LossMetrics:
        """Those metrics that have a number for each token."""
        return {name: each for name, each in self.metrics.items() if getattr(each, "ndim", 0)}


@dataclass(frozen=True, slots=True)
class Rule:
    """One entry of a table: an estimator, a loss, a correction or a normaliser (their forms: see `table`)."""

    settings: type[Choice]
    """Its keys are the function's keyword arguments; `kind` is the rule's name."""
    function: Callable[..., Any]
    source: str
    """Paper and equation."""
    needs: Callable[[Any], Needs] = no_needs
    """What the function needs, given the settings."""
    formula: str | Callable[[Any], str] = ""
    """What `--explain` shows: the formula, with keys of the settings in braces; a function of the settings, if they
    change its form."""
    metrics: Callable[[LossInputs], LossMetrics] | None = None
    """For a loss: further metrics to show. None: there are none."""
    is_flat: Callable[..., bool] | None = None
    """For an estimator: (returns of a group, **keys) -> whether nothing can be learned from the group alone. None: that
    is so if all its returns are equal."""
    flat: str = "whose returns are equal"
    """What `--explain` says of the groups that dynamic sampling replaces, with keys of the settings in braces."""
    remembers: bool = False
    """For an estimator: its function also takes `memory`, and returns the new memory as a second value."""
    ratio_keys: tuple[str, ...] = ()
    """For a loss: its keys that have an effect only where the ratio to the old policy can differ from 1."""
    unit: Callable[[Any], str] = each_token
    """For a loss, given the settings: over what one loss value is computed: a token, turn, episode or pair. Single
    tokens cannot be left out of a unit: the rest of it would move them."""

    def formula_of(self, settings: Choice) -> str:
        """The formula for these settings, with its keys still in braces."""
        return self.formula if isinstance(self.formula, str) else self.formula(settings)


def gives_nothing(function: Callable[..., Sequence[Advantages]]) -> Callable[..., bool]:
    """A `Rule.is_flat` for an estimator: whether all advantages are 0 when the group is given alone."""

    def is_flat(group: GroupReturns, **keys: Any) -> bool:
        (advantages,) = function([group], **keys)
        return not any(value for turns in advantages.values() for value in turns.values())

    return is_flat


Estimate = Callable[[Sequence[GroupReturns], Memory], tuple[Sequence[Advantages], Memory]]
Objective = Callable[[LossInputs], LossTerms]


@dataclass(frozen=True, slots=True)
class Algorithm:
    """A complete algorithm: what it needs, and its advantages, weights and loss as pure functions."""

    name: str
    needs: Needs
    estimate: Estimate
    """(returns of all groups of a batch, memory) -> (their advantages, with the same members and turns; new memory)."""
    is_flat: Callable[[GroupReturns], bool]
    """Whether nothing can be learned from the group alone."""
    weights: Callable[[Sequence[int]], tuple[float, ...]]
    """Number of trained tokens of each episode -> the weight of each of its tokens."""
    terms: Objective
    """The loss terms of tokens: weighted, corrected, with all that the settings add."""
    imported: tuple[str, ...] = ()
    """Import strings of the user's own functions, which are imported on their first call."""
    epochs: int = 1
    """How many times all minibatches of a batch are trained on."""

    def advantages(self, groups: Sequence[GroupReturns], memory: Memory = NOTHING) -> Sequence[Advantages]:
        """What `estimate` returns, without the memory."""
        return self.estimate(groups, memory)[0]

    def loss(self, inputs: LossInputs) -> tuple[Tensor, LossMetrics]:
        """The sum of `terms`, and its metrics."""
        terms = self.terms(inputs)
        return terms.loss_N.sum(), terms.shown

    def load(self) -> None:
        """Import the user's functions now, so that a run fails at its start. Raises UserError."""
        for path in self.imported:
            import_object(path)
