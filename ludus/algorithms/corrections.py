"""Corrections for tokens that were sampled by another policy than the one under training.

A correction is a function of the logprobs under the proximal policy (None: nothing needs them) and of those as
sampled; it returns what each token's loss is multiplied by, without gradient. None: every token counts once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from ludus.algorithms.base import Needs, Rule
from ludus.settings import Choice

if TYPE_CHECKING:
    from torch import Tensor


class BypassSettings(Choice):
    """Ratios are taken to the policy that sampled, and nothing is corrected."""

    kind: Literal["bypass"] = "bypass"


class NoneSettings(Choice):
    """Ratios are taken to the proximal policy; how far it is from the sampler counts for nothing."""

    kind: Literal["none"] = "none"


class TruncateSettings(Choice):
    """Ratios are taken to the proximal policy; its importance weight to the sampler is bounded."""

    kind: Literal["truncate"] = "truncate"
    cap: float = Field(default=2.0, gt=0)
    """The importance weight counts at most this much."""


def bypass(_proximal_N: Tensor | None, _sampled_N: Tensor) -> None:
    """Every token counts once."""


def no_correction(_proximal_N: Tensor | None, _sampled_N: Tensor) -> None:
    """Every token counts once, as if the proximal policy had sampled it."""


def truncate(proximal_N: Tensor | None, sampled_N: Tensor, *, cap: float) -> Tensor:
    """min(prox / mu, cap) for every token, shape (N,), without gradient.

    Source: "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training" (Yao et al. 2025), token-level
    truncated importance sampling; the truncation is that of IMPALA (arXiv 1802.01561) eq. 1.
    """
    assert proximal_N is not None, "a rule that needs the proximal policy gets it"
    return (proximal_N.detach() - sampled_N).exp().clamp(max=cap)


BYPASS = Rule(BypassSettings, bypass, "PPO (arXiv 1707.06347), with the sampler as the old policy")
NONE = Rule(
    NoneSettings,
    no_correction,
    "PPO (arXiv 1707.06347), with the trainer's own policy before the batch as the old one",
    needs=lambda _: Needs(proximal=True),
)
TRUNCATE = Rule(
    TruncateSettings,
    truncate,
    "truncated importance sampling (Yao et al. 2025); decoupled proximal policy (arXiv 2110.00641) eq. 3",
    needs=lambda _: Needs(proximal=True),
)
