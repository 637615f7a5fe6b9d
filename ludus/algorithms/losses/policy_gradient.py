"""The plain policy gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ludus.algorithms.base import LossInputs, LossMetrics, Rule
from ludus.algorithms.metrics import sampling_metrics
from ludus.settings import Choice

if TYPE_CHECKING:
    from torch import Tensor


class PolicyGradientSettings(Choice):
    """No ratio and no clipping."""

    kind: Literal["policy_gradient"] = "policy_gradient"


def policy_gradient_loss(inputs: LossInputs) -> tuple[Tensor, LossMetrics]:
    """-A log pi per token. Source: REINFORCE (Williams 1992); GPG (arXiv 2504.02546) eq. 4."""
    return -(inputs.advantages_N * inputs.logprobs_N), {}


POLICY_GRADIENT = Rule(
    PolicyGradientSettings,
    policy_gradient_loss,
    "REINFORCE (Williams 1992); GPG (arXiv 2504.02546) eq. 4",
    formula="-A log pi",
    metrics=sampling_metrics,
)
