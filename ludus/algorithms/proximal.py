"""Where the logprobs of the proximal policy come from, to which ratios are taken: the weights that a batch began with.

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

    recompute: as they were computed before the first optimizer step on the batch.  reuse: those of the pass that
    trains, so that prox is the policy that each minibatch begins with, and the ratio to it 1.
    interpolate: log mu + a (log pi - log mu) with a = (d - 1) / d, where the token is d >= 1 versions older than the
    weights that the batch began with, and a = 0 where it is none older: prox lies one version behind pi on the line
    from mu to it. Source: see PROXIMAL_SOURCE.
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
