"""The whole tree: what cannot act together is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from ludus.algorithms.losses.clip import ClipSettings
from ludus.config import Config, check_training, load_config
from ludus.errors import ConfigError


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["rollout.agent.mode=thread"],
            r"rollout.agent: mode='thread' is not available; there are 'inline', 'subproc', 'online'",
        ),
        (["rollout.agent.subproc_max_workers=8"], r"subproc_max_workers=8 cannot act: mode is 'inline'"),
        (["total_train_steps=1", "total_train_epochs=1"], "say the same thing twice"),
        (["gconfig.n_samples=2", "rollout.min_members=3"], "no group could ever be complete"),
        (["engine.keep_kv_on_publish=false"], "keep_kv_on_publish cannot act"),
        (["scheduler.trainer.cpus=2"], "scheduler.trainer cannot act: with trainer.ranks=1"),
        (["algorithm.normaliser=constant"], "algorithm.normaliser.tokens must be given"),
        (["trainer.minibatches=4"], r"unknown key 'trainer.minibatches'; did you mean 'algorithm.minibatches'\?"),
        (
            ["algorithm.loss.clip_high=0.28"],
            r"algorithm: loss.clip_high=0.28 cannot act.*minibatches to.*correction to bypass",
        ),
        (["algorithm.loss.clip_low=0.1"], r"loss.clip_low=0.1 cannot act"),
        (["name=../elsewhere"], "must be a folder's name"),
        (["rollout.max_concurent_rollouts=8"], r"did you mean 'rollout.max_concurrent_rollouts'\?"),
        (["n_samples=8"], r"did you mean 'gconfig.n_samples'\?"),
        (["total_train_step=8"], r"did you mean 'total_train_steps'\?"),
    ],
)
def test_what_cannot_be_is_refused(overrides: list[str], message: str) -> None:
    """Unknown keys and values that cannot act are errors that say what would."""
    with pytest.raises(ConfigError, match=message):
        load_config(None, overrides)


def test_values_equal_to_the_default_are_never_ineffective() -> None:
    """A key may be written out with its default even where it does not act."""
    load_config(None, ["rollout.agent.subproc_max_workers=4", "engine.keep_kv_on_publish=true"])
    load_config(None, ["algorithm.loss.clip_low=0.2"])


@pytest.mark.parametrize("where", ["algorithm.minibatches=2", "algorithm.correction=bypass"])
def test_clipping_is_allowed_where_it_acts(where: str) -> None:
    """With several steps on a batch, or a ratio to the sampler itself, the bounds can be set."""
    config = load_config(None, ["algorithm.loss.clip_high=0.28", where])
    assert config.algorithm.loss == ClipSettings(clip_high=0.28)


@pytest.mark.parametrize("key", ["valid_dataset.max_rows=2", "eval_gconfig.temperature=0"])
def test_settings_of_evaluations_that_nobody_asks_for_are_refused_in_training(key: str) -> None:
    """They are for `ludus eval` in any case, and for training once an evaluation is asked for."""
    values = ["total_train_steps=1", key]
    with pytest.raises(ConfigError, match=rf"{key.partition('=')[0].removesuffix('.temperature')} cannot act"):
        check_training(load_config(None, values))
    check_training(load_config(None, [*values, "eval.after=true"]))


def test_the_resolved_config_reads_back(tmp_path: Path) -> None:
    """What a run keeps as config.yaml is the same configuration when it is loaded again."""
    config = load_config(None, ["model.lora.rank=4", "total_train_steps=3", "gconfig.stop=[END]"])
    path = tmp_path / "config.yaml"
    path.write_text(config.to_yaml())
    assert load_config(path) == config


def test_the_resolved_config_keeps_what_eval_gconfig_leaves_to_gconfig(tmp_path: Path) -> None:
    """Read back and changed, `gconfig` still reaches the keys that eval_gconfig does not give."""
    path = tmp_path / "config.yaml"
    path.write_text(load_config(None, ["gconfig.max_new_tokens=7", "eval_gconfig.temperature=0"]).to_yaml())
    again = load_config(path, ["gconfig.max_new_tokens=9"]).eval_generation
    assert (again.temperature, again.max_new_tokens, again.n_samples) == (0.0, 9, 1)


def test_a_lone_sample_trains_without_a_baseline() -> None:
    """One sample a group is allowed for plain REINFORCE alone."""
    lone = ["gconfig.n_samples=1", "total_train_steps=1"]
    check_training(load_config(None, [*lone, "algorithm.advantage.baseline=none"]))
    with pytest.raises(ConfigError, match=r"algorithm.advantage \(.*baseline='mean'.*\) compares the members"):
        check_training(load_config(None, lone))


def test_evaluations_sample_as_training_does_unless_told_otherwise() -> None:
    """Without eval_gconfig an evaluation plays each row once, with the temperature of training."""
    config = Config(gconfig={"n_samples": 8, "temperature": 0.7})  # type: ignore[arg-type]
    assert (config.eval_generation.n_samples, config.eval_generation.temperature) == (1, 0.7)
    assert load_config(None, ["eval_gconfig.n_samples=4"]).eval_generation.n_samples == 4


def test_eval_gconfig_replaces_the_keys_that_it_gives() -> None:
    """What eval_gconfig does not give is as in gconfig, a default that it gives is given, and a row is played once."""
    base = ["gconfig.n_samples=6", "gconfig.max_new_tokens=7", "gconfig.temperature=0.7", "gconfig.stop=[END]"]
    greedy = load_config(None, [*base, "eval_gconfig.temperature=0"]).eval_generation
    assert (greedy.temperature, greedy.n_samples, greedy.max_new_tokens, greedy.stop) == (0.0, 1, 7, ("END",))
    given = load_config(None, [*base, "eval_gconfig.temperature=1", "eval_gconfig.n_samples=2"]).eval_generation
    assert (given.temperature, given.n_samples, given.max_new_tokens) == (1.0, 2, 7)
