"""Corrections for tokens that were sampled by another policy than the one under training.

A correction is a function of the inputs of a loss; it returns a factor for each token's loss, without gradient. None:
the factor is 1. A token whose factor is 0 still counts in the mean.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from ludus.algorithms.base import LossInputs, Needs, Rule
from ludus.algorithms.levels import Level, LeveledSettings, needs_of_level, sum_within
from ludus.algorithms.metrics import bounded_exp
from ludus.settings import Choice

if TYPE_CHECKING:
    from torch import Tensor

Mean = Literal["product", "geometric"]


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


class MaskSettings(ImportanceSettings):
    """Tokens (or turns, episodes) whose importance weight is too small or too large are left out."""

    kind: Literal["mask"] = "mask"
    low: float = Field(default=0.5, ge=0)
    """Weights below this are left out."""
    high: float = Field(default=5.0, gt=0)
    """Weights above this are left out."""
    weighs: bool = True
    """What is kept is multiplied by its importance weight. False: by 1."""


def bypass(_: LossInputs) -> None:
    """Every token counts once."""


def no_correction(_: LossInputs) -> None:
    """Every token counts once, as if the proximal policy had sampled it."""


def truncate(inputs: LossInputs, *, cap: float, level: Level = "token", mean: Mean = "product") -> Tensor:
    """min(prox / mu, cap), shape (N,), without gradient; of a turn or an episode for all of its tokens.

    Source: "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training" (Yao et al. 2025), truncated
    importance sampling; the truncation is that of IMPALA (arXiv 1802.01561) eq. 1.
    """
    return importance(inputs, level, mean).clamp(max=cap)


def mask(
    inputs: LossInputs, *, low: float, high: float, weighs: bool = True, level: Level = "token", mean: Mean = "product"
) -> Tensor:
    """prox / mu, or 1, where it lies in [low, high], else 0; shape (N,), without gradient.

    Source: by token IcePop (Ling Team 2025); by sequence masked importance sampling (Liu et al.
    2025).
    """
    weight_N = importance(inputs, level, mean)
    is_kept_N = (weight_N >= low) & (weight_N <= high)
    return weight_N.masked_fill(~is_kept_N, 0.0) if weighs else is_kept_N.float()


def importance(inputs: LossInputs, level: Level, mean: Mean) -> Tensor:
    """The importance weight prox / mu of each token, or of its whole turn or episode; shape (N,), no gradient."""
    assert inputs.proximal_logprobs_N is not None, "a rule that needs the proximal policy gets it"
    log_weight_N = inputs.proximal_logprobs_N.detach() - inputs.sampled_logprobs_N
    sums_N, counts_N = sum_within(log_weight_N, inputs, level)
    return bounded_exp(sums_N if mean == "product" else sums_N / counts_N)


def _needs(settings: ImportanceSettings) -> Needs:
    return Needs(proximal=True) | needs_of_level(settings)


def _mask_formula(settings: MaskSettings) -> str:
    if settings.weighs:
        return "prox / mu where it lies in [{low}, {high}], else 0"
    return "1 where prox / mu lies in [{low}, {high}], else 0"


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
    formula="min(prox / mu, {cap})",
)
MASK = Rule(
    MaskSettings,
    mask,
    "IcePop (Ling Team 2025); masked importance sampling (Liu et al. 2025)",
    needs=_needs,
    formula=_mask_formula,
)
