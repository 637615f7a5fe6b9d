"""Preference losses: DPO, KTO and ORPO.

Knows: tokens of a whole minibatch, the episode and group of each.  Knows not: where preferences come from.
The sign of a token's advantage is its side: above 0 it belongs to the chosen (preferred) sequence, below 0 to the
rejected one. A group has one pair. A sequence's logprob is the sum over its trained tokens.

Each token's loss is that of its pair or sequence, so that with weights by episode the sum is the mean over pairs or
sequences. Glossary: z the sum of log pi - log ref over a sequence; w the chosen of a pair, l the rejected; sigma the
sigmoid.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, Self

import pydantic
from pydantic import Field

from ludus.algorithms.base import LossInputs, LossMetrics, Needs, Rule
from ludus.algorithms.levels import sum_by_unit, sum_within
from ludus.algorithms.pack import OWN, UNRELATED
from ludus.errors import ConfigError
from ludus.settings import Choice

if TYPE_CHECKING:
    from torch import Tensor

DpoVariant = Literal["sigmoid", "robust", "hinge", "ipo"]


class DpoSettings(Choice):
    """Increases the difference between the pair's log-ratios to the reference."""

    kind: Literal["dpo"] = "dpo"
    beta: float = Field(default=0.1, gt=0)
    """How strongly the policy is held to the reference; the tau of ipo."""
    variant: DpoVariant = "sigmoid"
    """The loss of the difference: DPO's, robust DPO's, SLiC's (hinge), or IPO's, which uses means over tokens."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=0.5)
    """Assumed share of pairs with swapped labels; for sigmoid and robust."""

    @pydantic.model_validator(mode="after")
    def _check_smoothing(self) -> Self:
        if self.label_smoothing and self.variant in ("hinge", "ipo"):
            raise ConfigError(
                f"loss.label_smoothing={self.label_smoothing} has no meaning with variant {self.variant!r}; "
                "leave it at 0, or take variant sigmoid or robust"
            )
        return self


class KtoSettings(Choice):
    """Each sequence is desirable or undesirable, and is moved away from a common reference point."""

    kind: Literal["kto"] = "kto"
    beta: float = Field(default=0.1, gt=0)
    """How strongly the policy is held to the reference."""
    desirable_weight: float = Field(default=1.0, gt=0)
    undesirable_weight: float = Field(default=1.0, gt=0)
    """Weight of each sequence of a kind; the paper advises to make weight times number about equal for both kinds."""


class OrpoSettings(Choice):
    """Cross-entropy of the chosen sequence plus the log odds ratio of the pair; there is no reference."""

    kind: Literal["orpo"] = "orpo"
    beta: float = Field(default=0.1, gt=0)
    """Weight of the odds ratio, the paper's lambda."""


class _Sides(NamedTuple):
    """Sums over the chosen and the rejected tokens of each group, (G,), and the group index of each token, (N,)."""

    chosen_G: Tensor
    rejected_G: Tensor
    group_N: Tensor


def dpo_loss(
    inputs: LossInputs, *, beta: float, variant: DpoVariant = "sigmoid", label_smoothing: float = 0.0
) -> tuple[Tensor, LossMetrics]:
    """Per token the loss of its pair, shape (N,), with d = z_w - z_l and e the smoothing.

    sigmoid: -(1 - e) log sigma(beta d) - e log sigma(-beta d). robust: ((1 - e) (-log sigma(beta d)) + e log
    sigma(-beta d)) / (1 - 2 e). hinge: max(0, 1 - beta d). ipo: (d' - 1 / (2 beta))^2, d' the difference of z's means
    over tokens.
    Source: DPO (arXiv 2305.18290) eq. 7; smoothing Mitchell, "A note on DPO with noisy preferences" (2023); robust
    (arXiv 2403.00409) eq. 12; hinge SLiC (arXiv 2305.10425) with z; ipo (arXiv 2310.12036) eq. 17, with means as its
    authors computed it.
    """
    log_ratio_N = _log_ratio(inputs)
    z = _sides(log_ratio_N, inputs)
    d_G = z.chosen_G - z.rejected_G
    if variant == "hinge":
        loss_G = (1 - beta * d_G).relu()
    elif variant == "ipo":
        counts = _sides(log_ratio_N.new_ones(log_ratio_N.shape), inputs)
        loss_G = (z.chosen_G / counts.chosen_G - z.rejected_G / counts.rejected_G - 1 / (2 * beta)) ** 2
    else:
        right_G, wrong_G = _softplus(-beta * d_G), _softplus(beta * d_G)
        if variant == "robust":
            loss_G = ((1 - label_smoothing) * right_G - label_smoothing * wrong_G) / (1 - 2 * label_smoothing)
        else:
            loss_G = (1 - label_smoothing) * right_G + label_smoothing * wrong_G
    return loss_G[z.group_N], _shown(z, beta)


def kto_loss(
    inputs: LossInputs, *, beta: float, desirable_weight: float, undesirable_weight: float
) -> tuple[Tensor, LossMetrics]:
    """Per token the loss of its sequence, shape (N,): weight (1 - sigma(beta (z - z0))), or of an undesirable one
    weight (1 - sigma(beta (z0 - z))).

    z0, the reference point, is the mean of z over the sequences that the policy sampled, those of advantage 0 included,
    which serve only for this, or 0 if that is negative; it has no gradient. Where the sequences come from elsewhere it
    is the mean over unrelated answers to their prompts.
    Source: KTO (arXiv 2402.01306) eq. 8, where z0 is the divergence from the reference; z0 of unrelated answers: sec.
    4.1, as TRL.
    """
    z_N, count_N = sum_within(_log_ratio(inputs), inputs, "episode")
    share_N = _measures_divergence(inputs) / count_N  # the tokens of a sequence count once together
    z0 = ((share_N * z_N).sum() / share_N.sum()).detach().clamp(min=0)
    side_N = inputs.advantages_N.sign()
    weight_N = desirable_weight * (side_N > 0) + undesirable_weight * (side_N < 0)
    return weight_N * (1 - (beta * side_N * (z_N - z0)).sigmoid()), {"kto_reference_point": z0}


def orpo_loss(inputs: LossInputs, *, beta: float) -> tuple[Tensor, LossMetrics]:
    """-m_w - beta log sigma(log odds_w - log odds_l) of the token's pair, shape (N,).

    m: mean of log pi over a sequence; odds = p / (1 - p) with log p = m.
    Source: ORPO (arXiv 2403.07691) eq. 6 and 7, with eq. 2 over the answer alone.
    """
    ones_N = inputs.logprobs_N.new_ones(inputs.logprobs_N.shape)
    sums, counts = _sides(inputs.logprobs_N, inputs), _sides(ones_N, inputs)
    chosen_G, rejected_G = (
        # a sequence of probability 1 would have infinite odds
        (total_G / count_G).clamp(max=-1e-6)
        for total_G, count_G in ((sums.chosen_G, counts.chosen_G), (sums.rejected_G, counts.rejected_G))
    )
    log_odds_G = chosen_G - rejected_G - (_log1mexp(chosen_G) - _log1mexp(rejected_G))
    loss_G = -chosen_G + beta * _softplus(-log_odds_G)
    return loss_G[sums.group_N], {"log_odds_ratio": log_odds_G.detach().mean(), "nll": -chosen_G.detach().mean()}


def _log_ratio(inputs: LossInputs) -> Tensor:
    assert inputs.reference_logprobs_N is not None, "an algorithm that needs a reference gets its logprobs"
    return inputs.logprobs_N - inputs.reference_logprobs_N


def _measures_divergence(inputs: LossInputs) -> Tensor:
    """The tokens of sequences by which the policy's divergence from the reference is measured, as 1, others as 0."""
    all_N = inputs.logprobs_N.new_ones(inputs.logprobs_N.shape)
    kinds = () if inputs.origins_N is None else (inputs.origins_N == UNRELATED, inputs.origins_N == OWN)
    return next((chosen_N.to(all_N.dtype) for chosen_N in kinds if chosen_N.any()), all_N)


def _sides(values_N: Tensor, inputs: LossInputs) -> _Sides:
    """The sums of the values over each side of each group."""
    assert inputs.groups_N is not None, "a rule that needs all tokens of a minibatch gets them"
    groups, group_N = inputs.groups_N.unique(return_inverse=True)  # type: ignore[no-untyped-call]
    side_N = (inputs.advantages_N < 0).long()
    sums_2G, _ = sum_by_unit(values_N, side_N * len(groups) + group_N, 2 * len(groups))
    chosen_G, rejected_G = sums_2G.view(2, len(groups))
    return _Sides(chosen_G, rejected_G, group_N)


def _softplus(values: Tensor) -> Tensor:
    """-log sigma(-x), without overflow."""
    return values.logaddexp(values.new_zeros(()))


def _log1mexp(values: Tensor) -> Tensor:
    """log(1 - exp(x)) of x < 0."""
    return (-values.expm1()).log()


def _shown(z: _Sides, beta: float) -> LossMetrics:
    """The rewards that the policy implies. Source: DPO (arXiv 2305.18290) eq. 5."""
    chosen, rejected = beta * z.chosen_G.detach().mean(), beta * z.rejected_G.detach().mean()
    return {"reward_chosen": chosen, "reward_rejected": rejected, "reward_margin": chosen - rejected}


DPO = Rule(
    DpoSettings,
    dpo_loss,
    "DPO (arXiv 2305.18290) eq. 7; robust (arXiv 2403.00409) eq. 12; hinge: SLiC (arXiv 2305.10425); ipo (arXiv "
    "2310.12036) eq. 17",
    needs=lambda _: Needs(minibatch=True, reference=True, pairs=True),
    unit=lambda _: "pair",
    formula="{variant} of {beta} (z_w - z_l), z: sum of log pi / ref, w: the preferred, l: the other, smoothing: "
    "{label_smoothing}",
)
KTO = Rule(
    KtoSettings,
    kto_loss,
    "KTO (arXiv 2402.01306) eq. 8",
    needs=lambda _: Needs(minibatch=True, reference=True, sides=True),
    unit=lambda _: "episode",
    formula="{desirable_weight} (1 - sigmoid({beta} (z - z0))) of what is preferred, {undesirable_weight} (1 - "
    "sigmoid({beta} (z0 - z))) of what is not, z: sum of log pi / ref, z0: its mean over all episodes, at least 0",
)
ORPO = Rule(
    OrpoSettings,
    orpo_loss,
    "ORPO (arXiv 2403.07691) eq. 6 and 7",
    needs=lambda _: Needs(minibatch=True, pairs=True),
    unit=lambda _: "pair",
    formula="-m_w - {beta} log sigmoid(log of the ratio of odds), m: mean of log pi, w: the preferred, odds: exp(m) / "
    "(1 - exp(m))",
)
