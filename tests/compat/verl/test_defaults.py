"""verl's defaults: those that change what is trained, below whatever is given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from ludus.algorithms.settings import AlgorithmSettings
from ludus.compat import overrides
from ludus.compat.config import Config, LoopSettings
from ludus.compat.keys import meaning_of
from ludus.compat.verl.defaults import DEFAULTS, with_defaults
from ludus.compat.verl.keys import KEYS
from ludus.compat.verl.main_ppo import read_command_line
from tests.compat.public import read_keys

_ACTOR, _ROLLOUT, _MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.model"
_GRPO: dict[str, Any] = {"minibatches": 4, "correction": "none", "loss": {"dual_clip": 3.0}}
OTHERWISE = {
    "data.train_files": "rows are those that are named, and none otherwise",
    "data.val_files": "the same",
    "trainer.experiment_name": "it changes no training",
    "trainer.logger": "a tracker is named by who uses it",
    "trainer.project_name": "the same",
    f"{_ROLLOUT}.trace.backend": "the same",
    f"{_ROLLOUT}.trace.project_name": "the same",
    f"{_ROLLOUT}.multi_turn.format": "the template says how a model writes calls",
    f"{_MODEL}.enable_gradient_checkpointing": "it changes memory and time alone",
    "critic.model.path": "without one a critic begins with the policy's weights",
}
"""Keys of verl's with another default here, and why it stays."""


def config_of(*overrides: str, settings: tuple[str, ...] = ()) -> Config:
    return Config.read(with_defaults(read_command_line(overrides), settings))


def test_the_values_are_verls() -> None:
    """As its wheel has them."""
    theirs = read_keys("verl")
    assert {name: theirs[name] for name in DEFAULTS} == DEFAULTS


def test_every_other_default_is_the_same_here() -> None:
    """A key of verl's either has its default in the table, or means Ludus's default, or is named with a reason."""
    theirs = {**read_keys("verl"), f"{_ACTOR}.use_kl_loss": True}
    whole = Config.read({"algorithm": {"advantage": "gae", "kl": {"beta": 1.0}}})
    ours = {**whole.model_dump(mode="json"), "eval_gconfig": whole.eval_generation.model_dump()}
    meanings = {name: meaning_of(KEYS, name, value, theirs) for name, value in theirs.items()}
    taken = {name: meaning.ours for name, meaning in meanings.items() if meaning is not None and meaning.ours}
    in_table = {own for name in DEFAULTS for own in taken.get(name, ())}
    different = {
        name: own
        for name, values in taken.items()
        for own, value in values.items()
        if own not in in_table and value_at(ours, own) != value
    }
    assert different.keys() == OTHERWISE.keys()


def value_at(values: Any, name: str) -> Any:
    for part in name.split("."):
        values = values[part] if isinstance(values, Mapping) else None
    return values


def test_a_quickstart_of_verl_is_ppo_with_a_critic() -> None:
    """Whose batches, bounds, optimizers and lengths are verl's."""
    config = config_of(
        "data.train_files=train.parquet",
        "data.train_batch_size=512",
        f"{_MODEL}.path=smollm2-135m",
        "critic.optim.lr=2e-5",
    )
    expected = AlgorithmSettings(
        advantage="gae", minibatches=2, correction="none", loss={"clip_low": 0.2, "clip_high": 0.2, "dual_clip": 3.0}
    )
    assert config.algorithm.model_dump() == expected.model_dump() and config.has_critic
    assert (config.gconfig.n_samples, config.rollout.prompt_length, config.rollout.response_length) == (1, 512, 512)
    optimizer, critic = config.trainer.optimizer, config.critic.optimizer
    assert (optimizer.lr, optimizer.weight_decay, optimizer.betas) == (1e-6, 0.01, (0.9, 0.999))
    assert (critic.lr, critic.weight_decay, critic.betas) == (2e-5, 0.01, (0.9, 0.999))
    assert config.total_train_epochs == 30 and config.model.lora is None and not config.eval.is_asked
    assert isinstance(config.rollout.agent, LoopSettings)
    assert config.rollout.agent.default_agent_loop == "single_turn_agent"


def test_nothing_given_is_verls_own_configuration() -> None:
    """Its model too, so that no other is trained in its place; references may name a default."""
    config = config_of("data.max_response_length='${data.max_prompt_length}'")
    assert config.model.path == "~/models/deepseek-llm-7b-chat"
    assert (config.train_dataset.batch_size, config.algorithm.minibatches) == (1024, 4)
    assert config.rollout.response_length == 512


@pytest.mark.parametrize(
    ("given", "algorithm"),
    [
        (["algorithm.name=dapo"], {"name": "dapo"}),
        (["algorithm.advantage=gpg"], {"advantage": "gpg"}),
        (
            ["algorithm.adv_estimator=grpo", f"{_ACTOR}.clip_ratio=0.1"],
            {"loss": {"clip_low": 0.1, "clip_high": 0.1, "dual_clip": 3.0}},
        ),
        (
            ["algorithm.adv_estimator=grpo", f"{_ACTOR}.policy_loss.loss_mode=cispo"],
            {"loss": {"kind": "cispo", "clip_low": 0.2, "clip_high": 0.2}},
        ),
        (
            ["algorithm.adv_estimator=grpo", f"{_ACTOR}.policy_loss.loss_mode=dppo_kl"],
            {"loss": {"kind": "dppo", "divergence": "kl", "low": 0.2, "high": 0.2, "cap": 3.0}},
        ),
        (
            ["algorithm.adv_estimator=grpo", f"{_ACTOR}.policy_loss.loss_mode=sapo"],
            {"loss": "sapo", "normaliser": "episode"},
        ),
        (["algorithm.adv_estimator=grpo", "algorithm.loss=sapo"], {"loss": "sapo"}),
        (["algorithm.adv_estimator=grpo", f"{_ACTOR}.use_kl_loss=True"], {"kl": {"beta": 0.001, "estimator": "k3"}}),
        (["algorithm.adv_estimator=grpo", "algorithm.rollout_correction.bypass_mode=True"], {"correction": "bypass"}),
        (["algorithm.adv_estimator=grpo", "algorithm.correction=bypass"], {"correction": "bypass"}),
        (["algorithm.adv_estimator=grpo", "algorithm.minibatches=2"], {"minibatches": 2}),
        (["algorithm.adv_estimator=grpo", "data.train_batch_size=64"], {"minibatches": 1, "loss": "clip"}),
        (["algorithm.adv_estimator=grpo", "train_dataset.batch_size=512"], {"minibatches": 2}),
        (
            ["algorithm.adv_estimator=grpo", "data.train_batch_size=64", f"{_ACTOR}.ppo_epochs=2"],
            {"minibatches": 1, "epochs": 2},
        ),
    ],
)
def test_what_is_given_overrides_a_default(
    given: list[str], algorithm: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """By verl's name or by Ludus's, which decides about what belongs to it; no default is said to be without effect."""
    config = config_of(*given, f"{_ROLLOUT}.n=4")
    assert "do not act" not in caplog.text
    expected = AlgorithmSettings(**({} if "name" in algorithm else _GRPO) | algorithm)
    assert config.algorithm.model_dump() == expected.model_dump()
    assert not config.has_critic and not config.is_set("critic")


def test_ends_loops_and_adapters() -> None:
    """Steps come before epochs, tools are played by a loop that has them, an adapter has verl's scale."""
    assert config_of("total_train_steps=3").total_train_epochs is None
    assert config_of("trainer.total_training_steps=3").total_train_epochs is None
    played = config_of(f"{_ROLLOUT}.multi_turn.tool_config_path=tools.yaml").rollout.agent
    assert isinstance(played, LoopSettings) and played.default_agent_loop == "tool_agent"
    own = config_of("workflow=a:B").rollout.agent
    assert isinstance(own, LoopSettings) and own.default_agent_loop is None
    lora = config_of(f"{_MODEL}.lora_rank=8").model.lora
    assert lora is not None and (lora.rank, lora.alpha) == (8, 16)
    assert config_of(f"{_MODEL}.lora_rank=0", f"{_MODEL}.lora_alpha=32").model.lora is None


def test_held_out_rows_are_played_first_and_greedily() -> None:
    """Unless that is said otherwise; without rows nothing is asked for."""
    config = config_of("data.val_files=test.parquet", f"{_ROLLOUT}.temperature=0.7")
    assert config.eval.before and config.eval_generation.temperature == 0 and config.gconfig.temperature == 0.7
    silent = config_of("data.val_files=test.parquet", "trainer.val_before_train=False")
    assert not silent.eval.is_asked and silent.eval_gconfig is None
    sampled = config_of("data.val_files=test.parquet", f"{_ROLLOUT}.val_kwargs.temperature=0.5")
    assert sampled.eval_generation.temperature == 0.5 and sampled.eval_generation.n_samples == 1


def test_settings_of_the_command_line_override_a_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of `ludus run --set`, which are laid over the configuration later."""
    settings = ("algorithm.name=dapo", "train_dataset.batch_size=2", "total_train_steps=1")
    monkeypatch.setenv(overrides.SETTINGS, "\n".join(settings))
    config = config_of(settings=settings)
    assert config.algorithm.model_dump() == AlgorithmSettings(name="dapo").model_dump() and not config.has_critic
    assert (config.train_dataset.batch_size, config.total_train_steps) == (2, 1)
