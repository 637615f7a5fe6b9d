"""Which loss a row is trained with: the step hands over what it computed, a loss of `algo` answers.

Knows: the settings of the policy loss.  Knows not: models, rows, optimizers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from ludus.algorithms.loss import LossMetrics, cross_entropy, policy_loss
from ludus.trainer.settings import LossSettings


@dataclass(frozen=True, slots=True)
class LossInputs:
    """The trained tokens of one row; all of shape (N,), all fp32."""

    logprobs: Tensor
    """Under the weights being trained; the only one with a gradient."""
    sampled_logprobs: Tensor
    prox_logprobs: Tensor | None
    """Under the weights that the batch began with. None: the loss asks for none."""
    reference_logprobs: Tensor | None
    """Under the weights that training began with. None: the loss asks for none."""
    advantages: Tensor
    weights: Tensor


LossName = Literal["policy", "supervised"]
Loss = Callable[[LossInputs], tuple[Tensor, LossMetrics]]


def loss_called(name: LossName, settings: LossSettings) -> Loss:
    """The loss of that name; `settings` shape the policy loss alone."""
    return PolicyLoss(settings) if name == "policy" else supervised_loss


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """The clipped policy loss of `settings`."""

    settings: LossSettings

    def __call__(self, inputs: LossInputs) -> tuple[Tensor, LossMetrics]:
        reference = inputs.reference_logprobs
        return policy_loss(
            inputs.logprobs,
            inputs.sampled_logprobs,
            inputs.prox_logprobs,
            inputs.advantages,
            inputs.weights,
            clip_low=self.settings.clip_low,
            clip_high=self.settings.clip_high,
            tis_cap=self.settings.tis_cap,
            kl=None if reference is None else (reference, self.settings.kl_beta),
        )


def supervised_loss(inputs: LossInputs) -> tuple[Tensor, LossMetrics]:
    """Cross-entropy: every trained token is the right answer."""
    return cross_entropy(inputs.logprobs, inputs.weights)
