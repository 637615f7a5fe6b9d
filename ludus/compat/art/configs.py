"""Combines a backend's configuration with the options of one call into the settings of a step.

Knows: which field of `TrainConfig` corresponds to which setting of Ludus.  Knows not: models, weights.
Invariant: an option that was given overrides the backend's configuration; one that was not does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ludus import config as core
from ludus.algorithms.settings import AlgorithmSettings
from ludus.compat import overrides
from ludus.compat.art.backends import TrainConfig
from ludus.compat.config import Config
from ludus.errors import ConfigError
from ludus.loop.batch import BatchRules
from ludus.models.resolve import adapter_base
from ludus.settings import Idle, acting, merged, parse_override, with_overrides

_LOSSES: Mapping[str, Mapping[str, Any]] = {
    "cispo": {"kind": "cispo", "clip_high": 4.0},
    "ppo": {"kind": "clip", "clip_low": 0.2, "clip_high": 0.2},
}
"""ART's losses, with their default bounds."""

# Keys of a run that have no effect, by the reason: the user's own loop does these things.
_IDLE = {
    "your own loop plays, evaluates and ends": (
        "workflow train_dataset valid_dataset eval eval_gconfig checkpoint total_train_steps total_train_epochs "
        "total_train_seconds"
    ),
    "your own code starts the rollouts": (
        "rollout.max_concurrent_rollouts rollout.retries rollout.min_members rollout.episode_timeout_s "
        "rollout.max_consecutive_failures"
    ),
    "a group has as many trajectories as you give it": "gconfig.n_samples",
}

ACTING = {"gconfig.n_samples", "train_dataset.batch_size", "total_train_steps"}
"""Keys of `ludus run --set` that limit the user's loop: rollouts in a group, groups in a gathering, steps until the
script ends."""


_LORA = {"rank": 8, "alpha": 16.0}
_OPTIMIZER = {"lr": TrainConfig().learning_rate, "betas": (0.9, 0.99), "weight_decay": 0.1, "max_grad_norm": 0.1}
"""ART's defaults: these two."""


def default_config() -> Config:
    """A backend's default configuration: ART's LoRA, optimizer, loss and weighting of trajectories."""
    values: dict[str, Any] = {
        "model": {"lora": _LORA},
        "algorithm": {"name": "cispo", "normaliser": "episode"},
        "trainer": {"optimizer": _OPTIMIZER},
    }
    return Config(**values)


def check_config(config: Config) -> Config:
    """The configuration without keys that have no effect with a user's own loop; a warning names them."""
    idle = [Idle(name, why) for why, names in _IDLE.items() for name in names.split() if config.is_set(name)]
    return acting(config, idle)


def model_config(config: Config, *, base_model: str, own: Mapping[str, Any], folder: tuple[str, str]) -> Config:
    """The configuration of one model: the backend's, overridden by the model's own keys.

    own: nested keys of the configuration.  folder: parent and name of the model's folder.
    """
    values, path = config.model_dump(mode="json", exclude_unset=True), overrides.model(base_model)
    if values.get("model", {}).get("lora") == _LORA and adapter_base(Path(path).expanduser()) is not None:
        del values["model"]["lora"]  # only a default, and the existing adapter is trained further
    given = merged(values, own)
    given.setdefault("model", {})["path"] = path
    given["run_root"], given["name"] = folder
    return check_config(Config(**with_overrides(given, _settings())))


def _settings() -> list[str]:
    """The settings given to `ludus run`, without those for the script's own loop.

    Raises ConfigError for keys that have no effect here.
    """
    given = {".".join(parse_override(each)[0]): each for each in overrides.settings()}
    for why, names in _IDLE.items():
        named = sorted({*names.split()} & given.keys() - ACTING)
        if named:
            raise ConfigError(
                f"--set {', '.join(named)} cannot act: {why}; of the loop {', '.join(sorted(ACTING))} can be set, and "
                "-p NAME=VALUE replaces the script's own constants"
            )
    return [each for key, each in given.items() if key not in ACTING]


def batch_rules(config: core.Config, asked: TrainConfig) -> BatchRules:
    """How the groups of one call become a batch."""
    given, agent = asked.model_fields_set, config.rollout.agent
    oldest = asked.max_steps_off_policy
    if oldest is None and config.rollout.is_set("max_head_offpolicyness"):
        oldest = config.rollout.max_token_age
    return BatchRules(
        algorithm=algorithm_settings(config, asked),
        turn_discount=asked.turn_discount if "turn_discount" in given else agent.turn_discount,
        export_style=agent.export_style,
        row_tokens=config.trainer.row_tokens,
        max_token_age=oldest,
    )


def learning_rate(config: core.Config, asked: TrainConfig) -> float:
    """The learning rate of one call; one given to `ludus run` overrides the script's."""
    is_told = any(parse_override(each)[0] == ("trainer", "optimizer", "lr") for each in overrides.settings())
    is_asked = "learning_rate" in asked.model_fields_set and not is_told
    return asked.learning_rate if is_asked else config.trainer.optimizer.lr


def algorithm_settings(config: core.Config, asked: TrainConfig) -> AlgorithmSettings:
    """The algorithm of one call. Raises ConfigError if it is impossible with the backend's minibatches."""
    given, changed = asked.model_fields_set, config.algorithm.model_dump(mode="json")
    bounds = {} if asked.epsilon is None else {"clip_low": asked.epsilon, "clip_high": asked.epsilon}
    bounds |= {} if asked.epsilon_high is None else {"clip_high": asked.epsilon_high}
    if "loss_fn" in given:
        changed |= {"loss": {**_LOSSES[asked.loss_fn], **bounds}, "correction": "bypass"}
    elif bounds:
        kind = config.algorithm.loss.kind
        if "clip_high" not in changed["loss"] or (kind == "cispo" and asked.epsilon is not None):
            key = "epsilon_high" if asked.epsilon is None else "epsilon"
            raise ConfigError(
                f"{key}={getattr(asked, key)} cannot act: the backend's loss is {kind!r} (algorithm.loss), with no "
                f"such bound; leave it out, or set loss_fn to one of {', '.join(_LOSSES)}"
            )
        changed["loss"] |= bounds
    if "kl_penalty_coef" in given:
        # ART takes each token's log ratio off its advantage, whose gradient is that of k2 in the loss
        changed["kl"] = {"beta": asked.kl_penalty_coef, "estimator": "k2"} if asked.kl_penalty_coef else None
    if "scale_rewards" in given:
        changed["advantage"]["scale"] = "std" if asked.scale_rewards else "none"
    return AlgorithmSettings(**changed)
