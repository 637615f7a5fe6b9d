"""The logprobs of the proximal policy (the weights before the batch), to which ratios are taken.

Knows: logprobs, how many versions older tokens are than those weights.  Knows not: models, how logprobs are computed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ludus.algorithms.base import LossInputs
from ludus.errors import InternalError

if TYPE_CHECKING:
    from torch import Tensor

Proximal = Literal["recompute", "reuse", "interpolate"]
PROXIMAL_SOURCE = "A-3PO (arXiv 2512.06547), with the exponents of AReaL's loglinear"
PROXIMAL_FORMULA = "mu^(1 / d) pi^(1 - 1 / d), d the versions since a token was sampled; mu where d is 0"


def proximal_logprobs(inputs: LossInputs, proximal: Proximal) -> Tensor | None:
    """log prox of each token, shape (N,), without gradient; None only where nothing asked for it.

    recompute: computed by a forward pass before the first optimizer step on the batch.  reuse: those of the training
    pass itself, so that prox is the policy at the start of each minibatch, and the ratio is 1.
    interpolate: log mu + a (log pi - log mu) with a = (d - 1) / d for a token that is d >= 1 versions older than the
    weights before the batch, and a = 0 for d = 0: prox lies one version before pi on the line from mu to pi.
    Source: see PROXIMAL_SOURCE.
    """
    if proximal == "recompute":
        return inputs.proximal_logprobs_N
    current_N = inputs.logprobs_N.detach()
    if proximal == "reuse":
        return current_N
    if inputs.ages_N is None:
        raise InternalError("the proximal policy lies between two policies, and the ages of tokens are not given")
    ages_N = inputs.ages_N.clamp(min=1).to(current_N.dtype)
    return inputs.sampled_logprobs_N + (ages_N - 1) / ages_N * (current_N - inputs.sampled_logprobs_N)
