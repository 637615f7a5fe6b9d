"""Options of a call and keys of a backend: what acts, and what cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ludus
from ludus.algorithms.corrections import BypassSettings
from ludus.algorithms.estimators.group import GroupSettings
from ludus.algorithms.losses.cispo import CispoSettings
from ludus.algorithms.losses.clip import ClipSettings
from ludus.algorithms.settings import AlgorithmSettings, KlSettings
from ludus.compat import overrides
from ludus.compat.art.backends import TrainConfig
from ludus.compat.art.configs import (
    algorithm_settings,
    batch_rules,
    check_config,
    default_config,
    learning_rate,
    model_config,
)
from ludus.compat.art.schedule import create_lr_schedule, learning_rates
from ludus.errors import ConfigError, UserError
from ludus.settings import Choice


def test_defaults_are_arts() -> None:
    """Nothing said: LoRA of rank 8, its optimizer, cispo and its bound, each trajectory weighs the same."""
    config, asked = default_config(), TrainConfig()
    assert config.model.lora is not None and (config.model.lora.rank, config.model.lora.alpha) == (8, 16.0)
    assert learning_rate(config, asked) == 5e-6
    optimizer = config.trainer.optimizer
    assert (optimizer.betas, optimizer.weight_decay, optimizer.max_grad_norm) == ((0.9, 0.99), 0.1, 0.1)
    rules = batch_rules(config, asked)
    assert rules.algorithm == AlgorithmSettings(name="cispo", normaliser="episode")
    assert rules.algorithm.loss == CispoSettings(clip_high=4.0) and rules.max_token_age is None


def test_an_adapter_goes_on_as_it_is(tmp_path: Path) -> None:
    """A folder of a LoRA adapter as base model gets no second one unless somebody says so, which loading refuses."""
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "b"}')
    where = ("root", "name")
    config = model_config(default_config(), base_model=str(tmp_path), own={}, folder=where)
    assert config.model.lora is None and config.algorithm.name == "cispo"
    asked = model_config(default_config(), base_model=str(tmp_path), own={"model": {"lora": {"rank": 4}}}, folder=where)
    assert asked.model.lora is not None and asked.model.lora.rank == 4


@pytest.mark.parametrize(
    ("options", "loss"),
    [
        ({"loss_fn": "cispo", "epsilon_high": 1.0}, CispoSettings(clip_high=1.0)),
        ({"loss_fn": "ppo"}, ClipSettings()),
        ({"loss_fn": "ppo", "epsilon": 0.1}, ClipSettings(clip_low=0.1, clip_high=0.1)),
        ({"loss_fn": "ppo", "epsilon": 0.1, "epsilon_high": 0.3}, ClipSettings(clip_low=0.1, clip_high=0.3)),
    ],
)
def test_losses(options: dict[str, Any], loss: Choice) -> None:
    """Names of ART become losses whose ratio is to the policy that sampled, whatever the backend does otherwise."""
    for config in (default_config(), ludus.Config(), ludus.Config(algorithm={"minibatches": 2})):
        algorithm = algorithm_settings(config, TrainConfig(**options))
        assert (algorithm.loss, algorithm.correction) == (loss, BypassSettings())
        assert algorithm.minibatches == config.algorithm.minibatches


def test_a_bound_alone_leaves_the_loss() -> None:
    """epsilon and epsilon_high are the bounds of the loss that the backend is configured with, if it has such."""
    clip = ludus.Config(algorithm={"loss": {"dual_clip": 3.0}, "minibatches": 2})
    algorithm = algorithm_settings(clip, TrainConfig(epsilon=0.1, epsilon_high=0.3))
    assert algorithm.loss == ClipSettings(clip_low=0.1, clip_high=0.3, dual_clip=3.0)
    assert algorithm.correction == clip.algorithm.correction
    assert algorithm_settings(default_config(), TrainConfig(epsilon_high=2.0)).loss == CispoSettings(clip_high=2.0)
    for config, key in ((default_config(), "epsilon"), (ludus.Config(algorithm={"name": "sapo"}), "epsilon_high")):
        with pytest.raises(ConfigError, match=f"{key}=0.2 cannot act: the backend's loss is"):
            algorithm_settings(config, TrainConfig(**{key: 0.2}))


def test_what_is_given_acts_and_what_is_not_leaves_the_configuration() -> None:
    """A call's option wins, the backend's own key stands where the call is silent."""
    config = ludus.Config(
        trainer={"optimizer": {"lr": 1e-3}},
        algorithm={"advantage": {"scale": "none"}, "kl": {"beta": 0.1}},
        rollout={"max_head_offpolicyness": 3, "agent": {"turn_discount": 0.5}},
    )
    silent = TrainConfig()
    assert learning_rate(config, silent) == 1e-3
    rules = batch_rules(config, silent)
    assert rules.algorithm == config.algorithm
    assert (rules.turn_discount, rules.max_token_age) == (0.5, 3)
    said = TrainConfig(learning_rate=1e-4, beta=0.0, scale_rewards=True, turn_discount=1.0, max_steps_off_policy=0)
    assert learning_rate(config, said) == 1e-4
    rules = batch_rules(config, said)
    assert (rules.algorithm.advantage, rules.algorithm.kl) == (GroupSettings(scale="std"), None)
    assert (rules.turn_discount, rules.max_token_age) == (1.0, 0)
    charged = batch_rules(config, TrainConfig(kl_penalty_coef=0.2)).algorithm.kl
    assert charged == KlSettings(beta=0.2, estimator="k2")


def test_a_model_differs_in_its_own_keys() -> None:
    """They lie on top of the backend's, nested; the base model and the folder are the model's."""
    config = model_config(
        default_config(), base_model="base", own={"model": {"lora": None}, "seed": 3}, folder=("root", "name")
    )
    assert (config.model.path, config.model.lora, config.seed, config.run_root) == ("base", None, 3, "root")
    assert config.trainer == default_config().trainer
    with pytest.raises(ConfigError, match="unknown key"):
        model_config(default_config(), base_model="base", own={"init_args": {}}, folder=("root", "name"))


@pytest.mark.parametrize(
    "keys",
    [
        {"total_train_steps": 3},
        {"workflow": "a:b"},
        {"eval": {"after": True}},
        {"rollout": {"retries": 3}},
        {"gconfig": {"n_samples": 4}},
    ],
)
def test_keys_that_do_not_act(keys: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    """Who plays and when it ends is the user's own loop; the file of a run may be given all the same."""
    assert check_config(ludus.Config(**keys)) == ludus.Config()
    assert f"these keys do not act: {next(iter(keys))}" in caplog.text


def test_an_option_that_cannot_act() -> None:
    """cispo has no lower bound, and unknown options are named."""
    with pytest.raises(ConfigError, match=r"epsilon=0\.2 cannot act"):
        TrainConfig(loss_fn="cispo", epsilon=0.2)
    with pytest.raises(ConfigError, match="did you mean 'learning_rate'"):
        TrainConfig(learning_rat=1.0)


def test_schedules() -> None:
    """Up to the peak, then down; a list must be as long as there are batches."""
    assert create_lr_schedule(4, 1.0, "constant", warmup_steps=2) == [0.5, 1.0, 1.0, 1.0]
    assert create_lr_schedule(5, 1.0, "linear", warmup_steps=1, min_lr=0.5) == [1.0, 1.0, 0.875, 0.75, 0.625]
    cosine = create_lr_schedule(4, 2.0, "cosine")
    assert cosine[0] == 2.0 and cosine[2] == pytest.approx(1.0) and sorted(cosine, reverse=True) == cosine
    assert learning_rates(0.5, 3) == [0.5] * 3 and learning_rates((0.1, 0.2), 2) == [0.1, 0.2]
    with pytest.raises(UserError, match="has 2 values, and the trajectories make 3 batches"):
        learning_rates((0.1, 0.2), 3)
    with pytest.raises(UserError, match="known: linear, cosine, constant"):
        create_lr_schedule(4, 1.0, "step")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="total_steps=0"):
        create_lr_schedule(0, 1.0)


def test_what_ludus_run_was_told_stands_above_a_calls_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """As above everything else that a script says."""
    monkeypatch.setenv(overrides.SETTINGS, "trainer.optimizer.lr=3e-4")
    config = ludus.Config(trainer={"optimizer": {"lr": 3e-4}})
    assert learning_rate(config, TrainConfig(learning_rate=5e-5)) == 3e-4
