"""Which estimators, losses, corrections and normalisers there are, and which names stand for what of them.

One more of them is one more file and its line here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ludus.algorithms.base import Rule
from ludus.algorithms.corrections import BYPASS, MASK, NONE, TRUNCATE
from ludus.algorithms.estimators.group import GROUP
from ludus.algorithms.losses.cispo import CISPO
from ludus.algorithms.losses.clip import CLIP
from ludus.algorithms.losses.covariance import CLIP_COV, KL_COV
from ludus.algorithms.losses.cross_entropy import CROSS_ENTROPY
from ludus.algorithms.losses.dppo import DPPO
from ludus.algorithms.losses.dro import DRO
from ludus.algorithms.losses.gmpo import GMPO
from ludus.algorithms.losses.policy_gradient import POLICY_GRADIENT
from ludus.algorithms.losses.sapo import SAPO
from ludus.algorithms.losses.vespo import VESPO
from ludus.algorithms.normalisers import CONSTANT, EPISODE, TOKEN
from ludus.algorithms.own import OWN_ADVANTAGE, OWN_LOSS


def _by_kind(*rules: Rule) -> Mapping[str, Rule]:
    return {rule.settings.model_fields["kind"].default: rule for rule in rules}


ESTIMATORS = _by_kind(GROUP, OWN_ADVANTAGE)
"""(returns of all groups, **keys) -> advantages of all groups."""
LOSSES = _by_kind(CLIP, CISPO, SAPO, GMPO, CLIP_COV, KL_COV, DPPO, VESPO, DRO, POLICY_GRADIENT, CROSS_ENTROPY, OWN_LOSS)
"""(inputs, **keys) -> loss of each token, metrics."""
CORRECTIONS = _by_kind(BYPASS, NONE, TRUNCATE, MASK)
"""(inputs, **keys) -> what each token's loss is multiplied by."""
NORMALISERS = _by_kind(TOKEN, EPISODE, CONSTANT)
"""(trained tokens by episode, **keys) -> weight of a token by episode."""

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "grpo": {},
    "dr_grpo": {"advantage": {"scale": "none"}, "normaliser": "constant"},
    "rloo": {"advantage": {"baseline": "leave_one_out", "scale": "none"}},
    "reinforce": {"advantage": {"baseline": "none", "scale": "none"}},
    "dapo": {"loss": {"clip_high": 0.28}, "minibatches": 4, "dynamic_sampling": True},
    "cispo": {"loss": "cispo", "correction": "bypass"},
    "supervised": {"loss": "cross_entropy", "correction": "bypass"},
}
"""By name: the keys of `algorithm` that differ from the defaults. `{}` is the defaults."""
