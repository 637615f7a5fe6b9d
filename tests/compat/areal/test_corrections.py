"""AReaL's rejection sampling, and the keys that it had before.

Source: AReaL 1.0.4, areal/api/cli_args.py (RejectionSamplingConfig), areal/utils/functional/functional.py
(apply_rejection_sampling, ppo_actor_loss_fn).
"""

import math
from typing import Any

import pytest

from ludus.algorithms import AlgorithmSettings
from ludus.compat.areal.experiment import GRPOConfig, RejectionSamplingConfig, config_of
from ludus.compat.areal.importer import Imported, import_areal

MASK: dict[str, Any] = {"kind": "mask", "low": 0.0, "high": 5.0}
EPISODE: dict[str, Any] = {"level": "episode"}
GEOMETRIC: dict[str, Any] = {"level": "episode", "mean": "geometric"}
UNBOUNDED: dict[str, Any] = {"kind": "truncate", "cap": 1e9}


def imported(**actor: Any) -> Imported:
    return import_areal({"actor": {"path": "x", "use_decoupled_loss": True, **actor}})


def corrected(**actor: Any) -> Any:
    return AlgorithmSettings(**imported(**actor).config["algorithm"]).correction


@pytest.mark.parametrize(
    ("asked", "ours"),
    [
        ({}, MASK),
        ({"metric": "ratio", "upper": 3.0}, {**MASK, "high": 3.0}),
        ({"lower": 0.5}, {**MASK, "low": 0.5}),
        ({"level": "sequence", "lower": 0.5}, {**MASK, "low": 0.5, **GEOMETRIC}),
        ({"level": "sequence", "agg": "sum"}, [{**MASK, "weighs": False, **EPISODE}, {**UNBOUNDED, **GEOMETRIC}]),
        ({"action": "clamp"}, {"kind": "truncate", "cap": 5.0}),
        ({"action": "clamp", "lower": 0.5, "upper": 2.0}, {"kind": "truncate", "cap": 2.0, "floor": 0.5}),
        ({"action": "clamp", "level": "sequence"}, {"kind": "truncate", "cap": 5.0, **GEOMETRIC}),
        (
            {"metric": "kl_k1", "upper": 0.5, "lower": -0.5},
            {"kind": "mask", "low": math.exp(-0.5), "high": math.exp(0.5)},
        ),
        (
            {"metric": "kl_k1", "level": "sequence", "upper": 0.5},
            [{"kind": "mask", "weighs": False, "low": 0.0, "high": math.exp(0.5), **GEOMETRIC}, UNBOUNDED],
        ),
        (
            {"metric": "kl_k3", "upper": 0.1},
            [{"kind": "divergence", "estimator": "k3", "high": 0.1}, UNBOUNDED],
        ),
        (
            {"metric": "kl_k2", "level": "sequence", "agg": "max", "upper": 0.1},
            [{"kind": "divergence", "estimator": "k2", "high": 0.1, "combine": "max", **EPISODE}, UNBOUNDED],
        ),
    ],
)
def test_rejection_sampling_is_a_correction(asked: dict[str, Any], ours: Any) -> None:
    """With AReaL's defaults: tokens above 5 are left out. A sequence's ratio is its geometric mean, as bound and as
    weight, and what a divergence leaves is weighed by its own ratio."""
    assert corrected(rejection_sampling=asked) == AlgorithmSettings(correction=ours).correction
    entries = imported(rejection_sampling=asked).entries
    assert {entry.fate for entry in entries if "rejection" in entry.name} == {"taken"}


@pytest.mark.parametrize(
    ("asked", "ours"),
    [
        ({}, "none"),
        ({"rejection_sampling": None}, "none"),
        ({"behave_imp_weight_mode": "disabled", "behave_imp_weight_cap": 5.0}, "none"),
        ({"behav_imp_weight_cap": 4.0}, {**MASK, "high": 4.0}),
        ({"behave_imp_weight_cap": 4.0}, {**MASK, "high": 4.0}),
        ({"behave_imp_weight_mode": "token_truncate"}, {"kind": "truncate", "cap": 5.0}),
        ({"behave_imp_weight_mode": "sequence_mask", "behave_imp_weight_cap": 3.0}, {**MASK, "high": 3.0, **GEOMETRIC}),
    ],
)
def test_without_it_nothing_is_weighed(asked: dict[str, Any], ours: Any) -> None:
    """None is no weight at all; the keys that it had before left tokens out above their cap, unless they said
    otherwise (AReaL's own list of what they are now)."""
    assert corrected(**asked) == AlgorithmSettings(correction=ours).correction


def test_it_acts_with_the_decoupled_loss_alone() -> None:
    """As AReaL warns."""
    for keys, ours in (({}, "bypass"), ({"recompute_logprob": True}, "none")):
        found = import_areal({"actor": {"path": "x", "rejection_sampling": {"upper": 3.0}, **keys}})
        assert found.config["algorithm"]["correction"] == ours
        (fate,) = (entry.fate for entry in found.entries if entry.name.endswith(".upper"))
        assert fate == "not needed"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"level": "sequence", "agg": "max"}, "agg=max of metric=ratio has no counterpart here"),
        ({"action": "clamp", "metric": "kl_k3"}, "a weight is clamped by itself here"),
        ({"metric": "kl_k2", "lower": 0.1}, "divergences have no lower bound here"),
        ({"metric": "kl_k9"}, "there are ratio, kl_k1, kl_k2, kl_k3"),
    ],
)
def test_what_has_no_counterpart_is_said(asked: dict[str, Any], said: str) -> None:
    found = imported(rejection_sampling=asked)
    assert found.config["algorithm"]["correction"] == "none"
    (note, *_) = (entry.note for entry in found.entries if "rejection" in entry.name)
    assert said in note


def test_a_section_without_a_key_is_there() -> None:
    """In Python, with nothing but AReaL's defaults, and as an empty mapping in a file."""
    config = GRPOConfig(experiment_name="e", trial_name="t")
    config.actor.path, config.actor.use_decoupled_loss = "x", True
    config.actor.rejection_sampling = RejectionSamplingConfig()
    assert config_of(config).algorithm.correction == AlgorithmSettings(correction=MASK).correction  # type: ignore[arg-type]
