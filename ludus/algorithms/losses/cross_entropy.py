"""The loss of supervised training: every trained token is the right answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ludus.algorithms.base import LossInputs, LossMetrics, Needs, Rule
from ludus.settings import Choice

if TYPE_CHECKING:
    from torch import Tensor


class CrossEntropySettings(Choice):
    """The negative log-likelihood, whatever the advantages are."""

    kind: Literal["cross_entropy"] = "cross_entropy"


def cross_entropy_loss(inputs: LossInputs) -> tuple[Tensor, LossMetrics]:
    """-log pi per token, and its mean as `nll`."""
    return -inputs.logprobs_N, {"nll": -inputs.logprobs_N.detach().mean()}


CROSS_ENTROPY = Rule(
    CrossEntropySettings,
    cross_entropy_loss,
    "maximum likelihood",
    needs=lambda _: Needs(flat_groups=True),
    formula="-log pi",
)
