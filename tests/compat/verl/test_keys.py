"""verl's keys of the configuration: taken over, fixed, or refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ludus.algorithms.estimators.group import GroupSettings
from ludus.algorithms.losses.clip import ClipSettings
from ludus.algorithms.normalisers import EpisodeSettings
from ludus.compat.config import Config, load_config
from ludus.compat.verl.keys import KEYS, renamed
from ludus.errors import ConfigError
from ludus.settings import settings_keys


def test_a_command_line_of_verl_is_read() -> None:
    """What its users write on the command line means the same here."""
    config = load_config(
        None,
        [
            "data.train_files=~/data/gsm8k/train.parquet",
            "data.val_files=[~/data/gsm8k/test.parquet]",
            "data.train_batch_size=16",
            "data.max_prompt_length=256",
            "data.max_response_length=512",
            "data.return_raw_chat=True",
            "actor_rollout_ref.rollout.mode=async",
            "actor_rollout_ref.model.path=smollm2-135m",
            "actor_rollout_ref.actor.optim.lr=1e-6",
            "actor_rollout_ref.actor.clip_ratio=0.1",
            "algorithm.minibatches=2",
            "actor_rollout_ref.rollout.n=4",
            "actor_rollout_ref.rollout.top_k=-1",
            "actor_rollout_ref.rollout.multi_turn.enable=True",
            "actor_rollout_ref.rollout.multi_turn.max_assistant_turns=5",
            "actor_rollout_ref.rollout.multi_turn.format=hermes",
            "actor_rollout_ref.rollout.agent.default_agent_loop=tool_agent",
            "custom_reward_function.path=score.py",
            "algorithm.adv_estimator=grpo",
            "algorithm.norm_adv_by_std_in_grpo=False",
            "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean",
            "actor_rollout_ref.actor.policy_loss.loss_mode=vanilla",
            "trainer.total_epochs=2",
            "trainer.test_freq=-1",
            "trainer.row_tokens=512",
        ],
    )
    assert config.train_dataset.path == "~/data/gsm8k/train.parquet" and config.train_dataset.batch_size == 16
    assert config.valid_dataset.path == "~/data/gsm8k/test.parquet"
    assert (config.rollout.prompt_length, config.rollout.response_length) == (256, 512)
    assert config.trainer.optimizer.lr == 1e-6
    assert config.algorithm.loss == ClipSettings(clip_low=0.1, clip_high=0.1)
    assert (config.gconfig.n_samples, config.gconfig.top_k) == (4, 0)
    assert config.rollout.multi_turn.max_assistant_turns == 5
    assert config.rollout.agent.default_agent_loop == "tool_agent"
    assert config.reward.custom_reward_function.path == "score.py"
    assert config.total_train_epochs == 2 and config.eval.every_steps is None
    assert config.trainer.row_tokens == 512 and config.algorithm.advantage == GroupSettings(scale="none")
    assert config.algorithm.normaliser == EpisodeSettings()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["actor_rollout_ref.rollout.mode=sync"], "mode='sync' is not possible: it is 'async' here"),
        (["actor_rollout_ref.rollout.temprature=1"], "no counterpart here: .*did you mean .*rollout.temperature"),
        (
            ["critic.optim.lr=1", "data.truncation=error"],
            "no counterpart here: critic.optim.lr, data.truncation; leave",
        ),
        (["data.train_files=[a, b]"], "2 files of rows"),
        (["algorithm.adv_estimator=gae"], "'gae' is not available here; there are grpo, rloo"),
        (["actor_rollout_ref.rollout.n=4", "gconfig.n_samples=8"], "which is given as 8 too; remove one"),
        (["actor_rollout_ref.rollout.multi_turn.max_turns=4"], "unknown key 'rollout.multi_turn.max_turns'"),
    ],
)
def test_what_cannot_be_is_named(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(None, overrides)


def test_a_yaml_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("actor_rollout_ref:\n  rollout: {n: 3, multi_turn: {max_user_turns: 2}}\ngconfig: {top_p: 0.5}\n")
    config = load_config(path)
    assert (config.gconfig.n_samples, config.gconfig.top_p, config.rollout.multi_turn.max_user_turns) == (3, 0.5, 2)


def test_own_keys_stay_as_they_are() -> None:
    data: dict[str, Any] = {"trainer": {"row_tokens": 512}, "workflow_kwargs": {}, "eval_gconfig": None}
    assert renamed(data) == data


def test_every_target_is_a_key() -> None:
    """The table names keys that there are."""
    known = {".".join(path) for path in settings_keys(Config)}
    for target in (own for key in KEYS.values() for own in key.ours):
        assert target.removesuffix(".*") in known, target
