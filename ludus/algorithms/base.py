"""What an algorithm is made of: rules of one table each, what they need, and what they compose to.

Knows: groups, returns, tensors by their methods.  Knows not: settings of a run, models, torch.
Glossary. pi: policy under training; mu: policy that sampled; prox: policy that a batch began with; A: advantage;
w: share of a token in the loss of the optimizer batch, so that losses of rows add up. N: trained tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from ludus.algorithms.measured import Floats, Measured
from ludus.errors import InternalError
from ludus.settings import Choice, import_object
from ludus.types import Group

if TYPE_CHECKING:
    from torch import Tensor

Returns = Mapping[str, Mapping[str, float | None]]
"""By episode id and turn id. None: no return reaches the turn."""
Memory = Mapping[str, float]
"""What an algorithm knows of earlier batches, by name; a checkpoint keeps it."""
NOTHING: Memory = {}
# Of the largest return: what rounding leaves of the spread of equal returns is about 1e-16, and what is left of a true
# spread this small would be noise in the returns themselves.
LEAST_SPREAD = 1e-9
LossMetrics = dict[str, "Tensor"]
"""Numbers of each token, shape (N,), of which the mean is shown; or what is shown itself: a mean over tokens, unless
the name ends in `_max`."""


@dataclass(frozen=True, slots=True)
class TokenAdvantages:
    """Credit of a turn token by token: of those that were measured, in their order."""

    advantages: Floats
    values: Floats | None = None
    """Of the critic, as it was measured; what it is to learn instead likewise. None: there is no critic."""
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
"""By turn id: of all tokens of the turn alike, or of each. None: the turn has no credit."""
Advantages = Mapping[str, TurnAdvantages]
"""By episode id."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What must be there before the functions of a rule can be called; `a | b` is what both need."""

    members: int = 1
    """Fewest members of a group that have returns."""
    may_be_turns: bool = False
    """A lone episode will do whose turns are the members: several answers to one prompt, each with its reward."""
    proximal: bool = False
    """Logprobs under the weights that the batch began with."""
    reference: bool = False
    """Logprobs under the weights that training began with."""
    ages: bool = False
    """How many versions older tokens are than the weights that the batch began with."""
    minibatch: bool = False
    """All tokens of a minibatch at once, which takes a forward pass more; else any of them at a time will do."""
    entropy: bool = False
    """The entropies with their gradient."""
    pairs: bool = False
    """Groups with trained tokens on both sides: of positive and of negative advantage."""
    sides: bool = False
    """Sequences on one of these sides each, beside which sequences of advantage 0 are measured."""
    greedy: bool = False
    """One member more of each group, whose answers are the likeliest."""
    flat_groups: bool = False
    """Groups whose returns all agree: tokens move, or are counted, without an advantage too."""

    teacher: bool = False
    """A teacher's opinion of every token that can be trained, before advantages are made."""
    measured: frozenset[str] = frozenset()
    """Fields of `TokenNumbers` that the trainer must measure before advantages are made."""

    def __or__(self, other: Needs) -> Needs:
        one, two = asdict(self), asdict(other)
        return Needs(max(one.pop("members"), two.pop("members")), **{name: one[name] | two[name] for name in one})


@dataclass(frozen=True, slots=True)
class GroupReturns:
    """A group, and the return of each turn of each of its members."""

    group: Group
    """Its demonstrations are among its episodes, too."""
    returns: Returns
    """Members in the order of their ids."""
    turn_discount: float = 1.0
    """From one turn to the next; the returns have it."""
    measured: Measured = field(default_factory=dict)
    """Of turns that can be trained. Empty: the algorithm asks for nothing."""
    penalties: Mapping[str, Floats] = field(default_factory=dict)
    """By turn id what its reward has lost already for each token that was measured. Empty: no token costs anything."""

    def known(self) -> Iterator[tuple[str, str, float]]:
        """Member, turn and return of every turn that has one."""
        for member, turns in self.returns.items():
            yield from ((member, turn_id, value) for turn_id, value in turns.items() if value is not None)

    def means(self) -> dict[str, float]:
        """By member the mean of its returns; members without any are left out."""
        values: dict[str, list[float]] = {}
        for member, _, value in self.known():
            values.setdefault(member, []).append(value)
        return {member: math.fsum(each) / len(each) for member, each in values.items()}

    def lengths(self) -> dict[tuple[str, str], int]:
        """By member and turn how many tokens were sampled."""
        return {
            (episode.id, turn.id): len(turn.sampled.token_ids)
            for episode in self.group.episodes
            for turn in episode.session.turns
        }

    @property
    def is_flat(self) -> bool:
        """All returns are equal, up to rounding."""
        values = [value for _, _, value in self.known()]
        return not values or max(values) - min(values) <= LEAST_SPREAD * max(map(abs, values))

    def map(self, advantage: Callable[[str, str, float], float | None]) -> Returns:
        """What `advantage` makes of member, turn and return; None where there is no return."""
        return {
            member: {
                turn_id: None if value is None else advantage(member, turn_id, value)
                for turn_id, value in turns.items()
            }
            for member, turns in self.returns.items()
        }


@dataclass(frozen=True, slots=True)
class LossInputs:
    """Trained tokens: some of a row, or all of a minibatch for who needs that; all of shape (N,), all fp32."""

    logprobs_N: Tensor
    """Under the weights being trained, with a gradient."""
    sampled_logprobs_N: Tensor
    proximal_logprobs_N: Tensor | None
    """Under the weights that the batch began with. None: nothing needs them."""
    reference_logprobs_N: Tensor | None
    """Under the weights that training began with. None: nothing needs them."""
    advantages_N: Tensor
    weights_N: Tensor
    entropies_N: Tensor | None = None
    """Of the distributions under the weights being trained; with a gradient if something needs it."""
    turns_N: Tensor | None = None
    """Number of each token's turn, int64; of its episode and its group likewise. None: these are not all tokens of a
    minibatch."""
    episodes_N: Tensor | None = None
    groups_N: Tensor | None = None
    origins_N: Tensor | None = None
    """Where each token comes from (see `pack`), int64. None: all were sampled for this batch."""
    ages_N: Tensor | None = None
    """Versions by which each token is older than the weights that the batch began with, int64. None: nothing needs
    them."""

    @property
    def old_logprobs_N(self) -> Tensor:  # noqa: N802  (the suffix is the shape)
        """What ratios are taken to: the proximal policy if there is one, else the policy that sampled."""
        return self.sampled_logprobs_N if self.proximal_logprobs_N is None else self.proximal_logprobs_N.detach()


def no_needs(_: Any) -> Needs:
    """For rules that need nothing, whatever their settings."""
    return Needs()


def each_token(_: Any) -> str:
    """For losses that are of each token, whatever their settings."""
    return "token"


@dataclass(frozen=True, slots=True)
class LossTerms:
    """A loss as the sum of what its tokens give to it, and what is to be seen of them."""

    loss_N: Tensor
    """Weighted, corrected, with everything that the settings add; shape (N,), with a gradient."""
    ratio_N: Tensor
    """pi / old as the loss took it: of each token, or the mean over its turn or episode; without gradient, as all that
    follows."""
    factor_N: Tensor | None
    """What the policy's loss was multiplied by: the correction, or 0 for what is left out. None: by nothing."""
    metrics: LossMetrics

    @property
    def shown(self) -> LossMetrics:
        """The metrics, of each token's numbers the mean."""
        return {name: each.mean() if getattr(each, "ndim", 0) else each for name, each in self.metrics.items()}

    @property
    def of_tokens(self) -> LossMetrics:
        """Those metrics that have a number of each token."""
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
    """Of the settings."""
    formula: str | Callable[[Any], str] = ""
    """For people: what the function computes, with keys of the settings in braces; from the settings, where keys change
    its form."""
    metrics: Callable[[LossInputs], LossMetrics] | None = None
    """Of a loss: what is shown beside its own. None: nothing."""
    is_flat: Callable[..., bool] | None = None
    """Of an estimator: (returns of a group, **keys) -> whether the group by itself has nothing to teach. None: that is
    so if all its returns agree."""
    flat: str = "whose returns are equal"
    """For people: which groups dynamic sampling replaces, with keys of the settings in braces."""
    remembers: bool = False
    """Of an estimator: its function takes `memory` too, what is known of earlier batches, and returns what is known
    after this one besides."""
    ratio_keys: tuple[str, ...] = ()
    """Of a loss: its keys that act only where the ratio to the old policy can leave 1."""
    unit: Callable[[Any], str] = each_token
    """Of a loss, from the settings: what has one loss, by which all of its tokens move: a token, turn, episode or pair.
    None of them can be left out of it."""

    def formula_of(self, settings: Choice) -> str:
        """The formula in the form that it has with these settings, its keys still in braces."""
        return self.formula if isinstance(self.formula, str) else self.formula(settings)


def gives_nothing(function: Callable[..., Sequence[Advantages]]) -> Callable[..., bool]:
    """`Rule.is_flat` of an estimator: whether it gives a group by itself no advantage other than 0."""

    def is_flat(group: GroupReturns, **keys: Any) -> bool:
        (advantages,) = function([group], **keys)
        return not any(value for turns in advantages.values() for value in turns.values())

    return is_flat


Estimate = Callable[[Sequence[GroupReturns], Memory], tuple[Sequence[Advantages], Memory]]
Objective = Callable[[LossInputs], LossTerms]


@dataclass(frozen=True, slots=True)
class Algorithm:
    """What training with it needs; advantages, weights and loss as pure functions."""

    name: str
    needs: Needs
    estimate: Estimate
    """Advantages of all groups of a batch at once, each as its returns are: the same members, the same turns. From what
    is known of earlier batches, and with what is known after this one."""
    is_flat: Callable[[GroupReturns], bool]
    """Whether a group by itself has nothing to teach."""
    weights: Callable[[Sequence[int]], tuple[float, ...]]
    """From the trained tokens of each episode to the weight of each of its tokens."""
    terms: Objective
    """Of the tokens of a row: their losses, weighted and corrected, the KL term in them."""
    imported: tuple[str, ...] = ()
    """Import strings of the user's own functions, which are imported when they are first called."""

    def advantages(self, groups: Sequence[GroupReturns], memory: Memory = NOTHING) -> Sequence[Advantages]:
        """Those of `estimate` alone."""
        return self.estimate(groups, memory)[0]

    def loss(self, inputs: LossInputs) -> tuple[Tensor, LossMetrics]:
        """The sum of `terms`, and what is shown of it."""
        terms = self.terms(inputs)
        return terms.loss_N.sum(), terms.shown

    def load(self) -> None:
        """Import the user's functions now, so that a run fails at its start. Raises UserError."""
        for path in self.imported:
            import_object(path)
