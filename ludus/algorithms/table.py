"""The tables of estimators, losses, corrections and normalisers, and the presets made of them.

A new one is a file and its line here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ludus.algorithms.base import Rule
from ludus.algorithms.corrections import BYPASS, DIVERGENCE, MASK, NONE, SEVERAL, TRUNCATE
from ludus.algorithms.estimators.best_worst import BEST_WORST
from ludus.algorithms.estimators.gae import GAE
from ludus.algorithms.estimators.gdpo import GDPO
from ludus.algorithms.estimators.gigpo import GIGPO
from ludus.algorithms.estimators.gpg import GPG
from ludus.algorithms.estimators.group import GROUP
from ludus.algorithms.estimators.none import NONE_ADVANTAGE
from ludus.algorithms.estimators.optimal_token import OPTIMAL_TOKEN
from ludus.algorithms.estimators.pass_at_k import PASS_AT_K
from ludus.algorithms.estimators.rae import RAE
from ludus.algorithms.estimators.whitened import WHITENED
from ludus.algorithms.losses.cispo import CISPO
from ludus.algorithms.losses.clip import CLIP
from ludus.algorithms.losses.covariance import CLIP_COV, KL_COV
from ludus.algorithms.losses.cross_entropy import CROSS_ENTROPY
from ludus.algorithms.losses.dppo import DPPO
from ludus.algorithms.losses.dro import DRO
from ludus.algorithms.losses.gmpo import GMPO
from ludus.algorithms.losses.policy_gradient import POLICY_GRADIENT
from ludus.algorithms.losses.preference import DPO, KTO, ORPO
from ludus.algorithms.losses.sapo import SAPO
from ludus.algorithms.losses.vespo import VESPO
from ludus.algorithms.normalisers import CONSTANT, EPISODE, TOKEN
from ludus.algorithms.own import OWN_ADVANTAGE, OWN_LOSS


def _by_kind(*rules: Rule) -> Mapping[str, Rule]:
    return {rule.settings.model_fields["kind"].default: rule for rule in rules}


ESTIMATORS = _by_kind(
    *(GROUP, WHITENED, PASS_AT_K, OPTIMAL_TOKEN, GPG, GDPO, GIGPO, RAE, GAE, BEST_WORST),
    *(NONE_ADVANTAGE, OWN_ADVANTAGE),
)
"""(returns of all groups, **keys) -> advantages of all groups."""
LOSSES = _by_kind(
    *(CLIP, CISPO, SAPO, GMPO, CLIP_COV, KL_COV, DPPO, VESPO, DRO, POLICY_GRADIENT, CROSS_ENTROPY),
    *(DPO, KTO, ORPO, OWN_LOSS),
)
"""(inputs, **keys) -> loss of each token, metrics."""
CORRECTIONS = _by_kind(BYPASS, NONE, TRUNCATE, MASK, DIVERGENCE, SEVERAL)
"""(inputs, **keys) -> the factor of each token's loss, and which tokens count in its denominators."""
NORMALISERS = _by_kind(TOKEN, EPISODE, CONSTANT)
"""(number of trained tokens of each episode, **keys) -> weight of a token of each episode."""

_PREFERENCE = {"advantage": "best_worst", "correction": "bypass", "normaliser": "episode"}
_GSPO = {"level": "episode", "clip_low": 3e-4, "clip_high": 4e-4}
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "grpo": {},
    "dr_grpo": {"advantage": {"scale": "none"}, "normaliser": "constant"},
    "rloo": {"advantage": {"baseline": "leave_one_out", "scale": "none"}},
    "remax": {"advantage": {"baseline": "greedy", "scale": "none"}},
    "reinforce": {"advantage": {"baseline": "none", "scale": "none"}},
    "reinforce_plus_plus": {"advantage": "whitened"},
    "reinforce_plus_plus_baseline": {"advantage": {"kind": "whitened", "baseline": "mean"}},
    "dapo": {"loss": {"clip_high": 0.28}, "minibatches": 4, "dynamic_sampling": True},
    "lite_ppo": {"advantage": {"scale": "batch"}},
    "opo": {"advantage": {"baseline": "length", "scale": "none"}, "loss": "policy_gradient", "correction": "bypass"},
    "gpg": {"advantage": "gpg", "loss": "policy_gradient", "correction": "bypass"},
    "maxrl": {"advantage": {"scale": "mean"}},
    "pass_at_k": {"advantage": "pass_at_k"},
    "optimal_token": {"advantage": "optimal_token"},
    "gdpo": {"advantage": "gdpo"},
    "gigpo": {"advantage": "gigpo"},
    "ppo": {"advantage": "gae", "minibatches": 4},
    "rae": {"advantage": "rae"},
    "gspo": {"loss": _GSPO, "normaliser": "episode", "minibatches": 4},
    "luspo": {"loss": _GSPO, "normaliser": {"kind": "constant", "tokens": 1}, "minibatches": 4},
    "cispo": {"loss": "cispo", "correction": "bypass"},
    "sapo": {"loss": "sapo", "normaliser": "episode", "minibatches": 4},
    "gmpo": {"loss": "gmpo", "normaliser": "episode", "minibatches": 4},
    "vespo": {"loss": "vespo", "correction": "bypass"},
    "dppo": {"loss": "dppo", "correction": "bypass"},
    "clip_cov": {"loss": "clip_cov", "minibatches": 4},
    "kl_cov": {"loss": "kl_cov", "minibatches": 4},
    "icepop": {"correction": "mask"},
    "dpo": {**_PREFERENCE, "loss": "dpo"},
    "kto": {**_PREFERENCE, "loss": "kto"},
    "orpo": {**_PREFERENCE, "loss": "orpo"},
    "distillation": {"advantage": "none", "distillation": {}},
    "supervised": {"loss": "cross_entropy", "correction": "bypass"},
}
"""By name: the keys of `algorithm` that differ from the defaults. `{}` is the defaults."""
