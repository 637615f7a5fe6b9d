"""Corrections for tokens that were sampled by another policy than the one under training.

A correction is a function of the inputs of a loss; it returns a factor for each token's loss, without gradient, and
which tokens count in the loss's denominators.
Glossary: as in `base`. "prox" stands for the policy under training where ratios are to the sampler (`bypass`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from ludus.algorithms.base import LossInputs, Needs, Rule
from ludus.algorithms.levels import Level, LeveledSettings, Mean, max_within, needs_of_level, sum_within
from ludus.algorithms.metrics import bounded_exp, kl_estimate
from ludus.errors import ConfigError
from ludus.settings import Choice, Idle, OneOf

if TYPE_CHECKING:
    from torch import Tensor

Divergence = Literal["k2", "k3"]
Combined = Literal["mean", "sum", "max"]


@dataclass(frozen=True, slots=True)
class Corrected:
    """What a correction does with each token; without gradient."""

    factor_N: Tensor | None = None
    """On the token's loss. None: 1."""
    counted_N: Tensor | None = None
    """1 if the token counts in the loss's denominators, else 0. None: all do."""

    def __and__(self, other: Corrected) -> Corrected:
        """Both: factors multiply, and a token counts if it counts for both."""
        return Corrected(product(self.factor_N, other.factor_N), product(self.counted_N, other.counted_N))


def product(*factors: Tensor | None) -> Tensor | None:
    """Of those that are given. None: none is."""
    given = [each for each in factors if each is not None]
    return reduce(lambda one, other: one * other, given) if given else None


class BypassSettings(Choice):
    """Ratios are taken to the policy that sampled, and nothing is corrected."""

    kind: Literal["bypass"] = "bypass"


class NoneSettings(Choice):
    """Ratios are taken to the proximal policy; its distance from the sampler is ignored."""

    kind: Literal["none"] = "none"


class ImportanceSettings(LeveledSettings):
    """Ratios are taken to the proximal policy, and an importance weight corrects from the sampler to it."""

    mean: Mean = "product"
    """How the weights of a turn or an episode are combined: the product is exact, the geometric mean has less
    variance."""


class TruncateSettings(ImportanceSettings):
    """The importance weight has an upper bound."""

    kind: Literal["truncate"] = "truncate"
    cap: float = Field(default=2.0, gt=0)
    """Upper bound of the importance weight."""
    floor: float = Field(default=0.0, ge=0)
    """Lower bound of the importance weight."""


class MaskSettings(ImportanceSettings):
    """Tokens (or turns, episodes) whose importance weight is too small or too large are left out."""

    kind: Literal["mask"] = "mask"
    low: float = Field(default=0.5, ge=0)
    """Weights below this are left out."""
    high: float = Field(default=5.0, gt=0)
    """Weights above this are left out."""
    weighs: bool = True
    """What is kept is multiplied by its importance weight. False: by 1."""
    counted: bool = True
    """What is left out counts in the loss's denominators all the same. False: it does not, so that the rest weighs
    more, and it has no KL or entropy term either."""


class DivergenceSettings(LeveledSettings):
    """Tokens (or turns, episodes) whose divergence from the sampler is too large are left out."""

    kind: Literal["divergence"] = "divergence"
    estimator: Divergence = "k3"
    """How the divergence is estimated from each token."""
    combine: Combined = "mean"
    """What is bounded of a turn or an episode: the mean over its tokens, their sum, or the largest."""
    high: float = Field(default=0.01, gt=0)
    """Divergences above this are left out."""
    counted: bool = True
    """As for `mask`."""

    def idle(self) -> Iterator[Idle]:
        if self.level == "token" and self.is_set("combine"):
            yield Idle("combine", "with level=token each token is judged by itself")


def bypass(_: LossInputs) -> Corrected:
    """Every token counts once."""
    return Corrected()


def no_correction(_: LossInputs) -> Corrected:
    """Every token counts once, as if the proximal policy had sampled it."""
    return Corrected()


def truncate(
    inputs: LossInputs, *, cap: float, floor: float = 0.0, level: Level = "token", mean: Mean = "product"
) -> Corrected:
    """min(prox / mu, cap), at least `floor`; of a turn or an episode for all of its tokens.

    Source: "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training" (Yao et al. 2025), truncated
    importance sampling; the truncation is that of IMPALA (arXiv 1802.01561) eq. 1.
    """
    return Corrected(importance(inputs, level, mean).clamp(floor, cap))


def mask(
    inputs: LossInputs,
    *,
    low: float,
    high: float,
    weighs: bool = True,
    counted: bool = True,
    level: Level = "token",
    mean: Mean = "product",
) -> Corrected:
    """prox / mu, or 1, where it lies in [low, high], else 0.

    Source: by token IcePop (Ling Team 2025); by sequence masked importance sampling (Liu et al.
    2025).
    """
    weight_N = importance(inputs, level, mean)
    is_kept_N = (weight_N >= low) & (weight_N <= high)
    factor_N = weight_N.masked_fill(~is_kept_N, 0.0) if weighs else is_kept_N.float()
    return Corrected(factor_N, None if counted else is_kept_N.float())


def divergence(
    inputs: LossInputs,
    *,
    estimator: Divergence,
    combine: Combined,
    high: float,
    counted: bool = True,
    level: Level = "token",
) -> Corrected:
    """1 where the estimate of KL(mu || prox) is at most `high`, else 0.

    Source: "When Speed Kills Stability" (Liu et al. 2025), as verl has it; the estimators are Schulman's (2020).
    """
    estimate_N = kl_estimate(inputs.sampled_logprobs_N, _policy(inputs), estimator)
    if combine == "max":
        combined_N = max_within(estimate_N, inputs, level)
    else:
        sums_N, counts_N = sum_within(estimate_N, inputs, level)
        combined_N = sums_N if combine == "sum" else sums_N / counts_N
    kept_N = (combined_N <= high).float()
    return Corrected(kept_N, None if counted else kept_N)


def importance(inputs: LossInputs, level: Level, mean: Mean) -> Tensor:
    """The importance weight prox / mu of each token, or of its whole turn or episode; shape (N,), no gradient."""
    sums_N, counts_N = sum_within(_policy(inputs) - inputs.sampled_logprobs_N, inputs, level)
    return bounded_exp(sums_N if mean == "product" else sums_N / counts_N)


def _policy(inputs: LossInputs) -> Tensor:
    """Logprobs under the proximal policy, or where there is none under the one that is trained."""
    policy_N = inputs.logprobs_N if inputs.proximal_logprobs_N is None else inputs.proximal_logprobs_N
    return policy_N.detach()


def weights_of_counted(inputs: LossInputs, counted_N: Tensor, normaliser: str) -> Tensor:
    """The weights as if only these tokens had been sampled, shape (N,): the others' are 0. What is divided by a number
    of tokens, the step's or the episode's, is divided by that of the counted ones; the number of episodes stays.

    counted_N: 1 or 0 for each of all tokens of a minibatch.  normaliser: its kind.
    """
    weights_N = inputs.weights_N * counted_N
    if normaliser == "constant":
        return weights_N
    level: Level = "token" if normaliser == "token" else "episode"
    whole, left = (
        each_N.sum() if level == "token" else sum_within(each_N, inputs, level)[0]
        for each_N in (inputs.weights_N, weights_N)
    )
    return weights_N * whole / left.masked_fill(left == 0, 1.0)


def _needs(settings: ImportanceSettings) -> Needs:
    return Needs(proximal=True) | needs_of_level(settings)


def _needs_of_mask(settings: MaskSettings | DivergenceSettings) -> Needs:
    counts_some = not settings.counted  # all tokens of a minibatch are needed for the number of those that count
    return Needs(proximal=True, minibatch=counts_some, flat_groups=counts_some) | needs_of_level(settings)


def _mask_formula(settings: MaskSettings) -> str:
    if settings.weighs:
        return "prox / mu where it lies in [{low}, {high}], else 0"
    return "1 where prox / mu lies in [{low}, {high}], else 0"


def _truncate_formula(settings: TruncateSettings) -> str:
    return "max({floor}, min(prox / mu, {cap}))" if settings.floor else "min(prox / mu, {cap})"


BYPASS = Rule(BypassSettings, bypass, "PPO (arXiv 1707.06347), with the sampler as the old policy", formula="1")
NONE = Rule(
    NoneSettings,
    no_correction,
    "PPO (arXiv 1707.06347), with the trainer's own policy before the batch as the old one",
    needs=lambda _: Needs(proximal=True),
    formula="1",
)
TRUNCATE = Rule(
    TruncateSettings,
    truncate,
    "truncated importance sampling (Yao et al. 2025); decoupled proximal policy (arXiv 2110.00641) eq. 3",
    needs=_needs,
    formula=_truncate_formula,
)
MASK = Rule(
    MaskSettings,
    mask,
    "IcePop (Ling Team 2025); masked importance sampling (Liu et al. 2025)",
    needs=_needs_of_mask,
    formula=_mask_formula,
)
DIVERGENCE = Rule(
    DivergenceSettings,
    divergence,
    "rejection by divergence (Liu et al. 2025); Schulman 2020",
    needs=_needs_of_mask,
    formula="1 where the {estimator} estimate of KL(mu || prox) is at most {high}, else 0",
)
_PARTS = {"bypass": BYPASS, "truncate": TRUNCATE, "mask": MASK, "divergence": DIVERGENCE}


class SeveralSettings(Choice):
    """Several corrections at once, each with its own level and bounds; a list stands for it."""

    kind: Literal["several"] = "several"
    of: tuple[Annotated[Choice, OneOf({kind: rule.settings for kind, rule in _PARTS.items()}, "truncate")], ...] = ()
    """The factors multiply, and a token is left out if one of them leaves it out. One of them may weigh tokens, or with
    `bypass` among them none."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.of:
            raise ConfigError("an empty list corrects nothing; say so with correction: none, or bypass")
        with_ratio = [each.kind for each in self.of if isinstance(each, BypassSettings) or weighs(each)]
        if len(with_ratio) > 1:
            raise ConfigError(
                f"{' and '.join(with_ratio)} each bring the ratio to the policy that sampled, and it would count "
                "twice; keep one of them, and set weighs: false for a mask beside it"
            )
        return self


def several(inputs: LossInputs, *, of: tuple[Choice, ...]) -> Corrected:
    """All of them: the product of their factors, and what counts for all."""
    return reduce(lambda one, other: one & other, (_bound(each)(inputs) for each in of))


def parts_of(correction: Choice) -> tuple[Choice, ...]:
    """The corrections that it consists of: itself, unless it is several."""
    return correction.of if isinstance(correction, SeveralSettings) else (correction,)


def weighs(correction: Choice) -> bool:
    """Whether it multiplies tokens by their importance weight."""
    return isinstance(correction, TruncateSettings) or (isinstance(correction, MaskSettings) and correction.weighs)


def counts(correction: Choice) -> bool:
    """Whether what it leaves out counts in the loss's denominators."""
    return not isinstance(correction, MaskSettings | DivergenceSettings) or correction.counted


def _bound(part: Choice) -> Callable[[LossInputs], Corrected]:
    keys: dict[str, Any] = {name: value for name, value in part if name != "kind"}
    return partial(_PARTS[part.kind].function, **keys)


def _needs_of_several(settings: SeveralSettings) -> Needs:
    needs = reduce(or_, (_PARTS[each.kind].needs(each) for each in settings.of), Needs())
    is_bypassed = any(isinstance(each, BypassSettings) for each in settings.of)
    return replace(needs, proximal=needs.proximal and not is_bypassed)


SEVERAL = Rule(
    SeveralSettings,
    several,
    '"When Speed Kills Stability" (Liu et al. 2025)',
    needs=_needs_of_several,
    formula="the product of {of}",
)
