"""verl's keys of the configuration: taken over, fixed, or refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ludus.algorithms.estimators.gae import GaeSettings
from ludus.algorithms.estimators.group import GroupSettings
from ludus.algorithms.losses.clip import ClipSettings
from ludus.algorithms.normalisers import EpisodeSettings
from ludus.algorithms.settings import AlgorithmSettings
from ludus.compat.config import Config, LoopSettings, load_config
from ludus.compat.keys import Key, Meaning, Values, fixed, meaning_of, to
from ludus.compat.verl.keys import KEYS, renamed
from ludus.compat.verl.resources import loop_config
from ludus.errors import ConfigError
from ludus.settings import settings_keys
from ludus.teachers.settings import ModelTeacherSettings, NoTeacherSettings
from ludus.trainer.optimizer import learning_rate
from tests.compat.public import read_keys

_TRACED = (("mlflow",), "ludus", None)


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


def test_every_key_of_verls_own_configuration_is_read() -> None:
    """At its default none is unknown, and none refused."""
    defaults = read_keys("verl")
    meanings = {name: meaning_of(KEYS, name, default, defaults) for name, default in defaults.items()}
    unknown = {name for name, meaning in meanings.items() if meaning is None}
    assert unknown == {f"reward.custom_reward_function.{name}" for name in ("path", "name")}  # those are ours as well
    refused = [name for name, meaning in meanings.items() if meaning is not None and meaning.fate == "left out"]
    assert [name for name in refused if defaults[name] is not None] == []  # None: what another key says


def test_the_longest_pattern_counts() -> None:
    """Wherever it stands in the table."""
    table = {"a.*": fixed(1), "a.b.*": to("ours.*"), "a.b.c.*": fixed(2)}
    assert meaning_of(table, "a.b.x", 5, {}) == Meaning("taken", "", {"ours.x": 5})
    assert meaning_of(table, "a.x", 5, {}) == Meaning("left out", "it is 1 here, as ")


def test_arguments_of_the_template_reach_loops() -> None:
    """By verl's key they are arguments of every rendering."""
    config = load_config(None, ["data.apply_chat_template_kwargs.enable_thinking=False"])
    assert config.model.chat_template_kwargs == {"enable_thinking": False}
    assert loop_config(config).data.apply_chat_template_kwargs["enable_thinking"] is False
    assert not loop_config(load_config()).data.apply_chat_template_kwargs


def test_a_critic_of_verl_is_read() -> None:
    """GAE with its discounts, from token to token and from turn to turn, and the critic's own keys."""
    config = load_config(
        None,
        [
            "algorithm.adv_estimator=gae",
            "algorithm.gamma=0.99",
            "algorithm.lam=0.95",
            "critic.model.path=smollm2-135m",
            "critic.optim.lr=2e-5",
            "critic.optim.lr_warmup_steps=3",
            "critic.grad_clip=0.5",
            "critic.cliprange_value=0.2",
            "data.train_batch_size=32",
            f"{_ACTOR}.ppo_mini_batch_size=16",
            "critic.ppo_mini_batch_size=16",
            "critic.ppo_epochs=4",
            "trainer.critic_warmup=5",
        ],
    )
    assert config.algorithm.advantage == GaeSettings(gamma=0.99, lam=0.95) and config.has_critic
    assert config.rollout.agent.turn_discount == 0.99
    critic = config.critic
    assert (critic.path, critic.clip_range, critic.warmup_steps, critic.epochs) == ("smollm2-135m", 0.2, 4, 4)
    assert (critic.optimizer.lr, critic.optimizer.warmup_steps, critic.optimizer.max_grad_norm) == (2e-5, 3, 0.5)
    assert critic.optimizer.warmup_from_zero
    with pytest.raises(ConfigError, match=r"algorithm\.lam"):
        load_config(None, ["algorithm.lam=0.95"])
    with pytest.raises(ConfigError, match=r"algorithm\.gamma"):
        load_config(None, ["algorithm.adv_estimator=reinforce_plus_plus", "algorithm.gamma=0.95"])
    whole = [f"{_ACTOR}.ppo_mini_batch_size=64", "critic.ppo_mini_batch_size=8", "data.train_batch_size=8"]
    assert load_config(None, ["algorithm.adv_estimator=gae", *whole]).algorithm.minibatches == 1
    unread = load_config(None, ["algorithm.adv_estimator=grpo", "algorithm.lam=0.95", "algorithm.gamma=0.9"])
    assert unread.rollout.agent.turn_discount == 1.0


_ACTOR, _CORRECTED = "actor_rollout_ref.actor", "algorithm.rollout_correction"
_IS, _RS, _BYPASS = f"{_CORRECTED}.rollout_is", f"{_CORRECTED}.rollout_rs", f"{_CORRECTED}.bypass_mode"
_TYPE = f"{_CORRECTED}.loss_type"
_TO_REINFORCE = (f"{_BYPASS}=True", f"{_TYPE}=reinforce")
_DISTILLED = "distillation.distillation_loss"
_FILTERED = (
    *("algorithm.filter_groups.enable=True", "reward_model.overlong_buffer.enable=True"),
    *("reward_model.overlong_buffer.len=4", "data.max_response_length=16"),
)
_AS_FILTERED = {"dynamic_sampling": True, "overlong": {"tokens": 4, "max_tokens": 16}}
_TAUGHT = ("distillation.enabled=True", "distillation.teacher_models.teacher_model.model_path=org/teacher")


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (["algorithm.adv_estimator=rloo", "algorithm.norm_adv_by_std_in_grpo=True"], {"name": "rloo"}),
        (
            ["algorithm.adv_estimator=reinforce_plus_plus_baseline"],
            {"advantage": {"kind": "whitened", "over": "tokens", "baseline": "mean"}},
        ),
        (["algorithm.adv_estimator=opo"], {"advantage": {"baseline": "length", "scale": "none"}}),
        (["algorithm.adv_estimator=remax"], {"name": "remax"}),
        (["algorithm.adv_estimator=grpo_passk"], {"advantage": "pass_at_k"}),
        (
            [f"{_ACTOR}.policy_loss.loss_mode=gspo", f"{_ACTOR}.clip_ratio_high=4e-4", f"{_ACTOR}.clip_ratio_c=3.0"],
            {"loss": {"level": "episode", "clip_high": 4e-4}},
        ),
        ([f"{_ACTOR}.clip_ratio_c=3.0", f"{_ACTOR}.tau_pos=2.0"], {"loss": {"dual_clip": 3.0}}),
        (
            [
                f"{_ACTOR}.policy_loss.loss_mode=cispo",
                f"{_ACTOR}.clip_ratio=0.1",
                f"{_ACTOR}.policy_loss.kl_cov_ratio=1",
            ],
            {"loss": {"kind": "cispo", "clip_low": 0.1, "clip_high": 0.1}},
        ),
        (
            [f"{_ACTOR}.policy_loss.loss_mode=cispo", f"{_ACTOR}.clip_ratio_low=10", f"{_ACTOR}.clip_ratio_high=0.2"],
            {"loss": {"kind": "cispo", "clip_high": 0.2}},
        ),
        ([*_TO_REINFORCE, f"{_ACTOR}.clip_ratio=0.1"], {"loss": "policy_gradient", "correction": "bypass"}),
        (
            [f"{_ACTOR}.policy_loss.loss_mode=geo_mean", f"{_ACTOR}.loss_agg_mode=token-mean"],
            {"loss": {"kind": "gmpo"}, "normaliser": "episode"},
        ),
        (
            [f"{_ACTOR}.policy_loss.loss_mode=dppo_kl", f"{_ACTOR}.clip_ratio=0.05", f"{_ACTOR}.clip_ratio_c=20.0"],
            {"loss": {"kind": "dppo", "divergence": "kl", "low": 0.05, "high": 0.05, "cap": 20.0}},
        ),
        (
            [f"{_ACTOR}.policy_loss.loss_mode=sapo", f"{_ACTOR}.tau_neg=1.1"],
            {"loss": {"kind": "sapo", "tau_negative": 1.1}, "normaliser": "episode"},
        ),
        (
            [f"{_ACTOR}.loss_agg_mode=seq-mean-token-sum-norm", "data.max_response_length=512"],
            {"normaliser": {"kind": "constant", "tokens": 512}},
        ),
        (
            [f"{_ACTOR}.use_kl_loss=True", f"{_ACTOR}.kl_loss_coef=0.01", f"{_ACTOR}.kl_loss_type=low_var_kl"],
            {"kl": {"beta": 0.01, "estimator": "k3"}},
        ),
        ([f"{_ACTOR}.use_kl_loss=True"], {"kl": {"beta": 0.001}}),
        ([f"{_ACTOR}.use_kl_loss=True", f"{_ACTOR}.kl_loss_coef=0", f"{_ACTOR}.kl_loss_type=k1"], {}),
        (
            [
                *("reward_model.overlong_buffer.enable=True", "reward_model.overlong_buffer.len=4"),
                *("reward_model.overlong_buffer.penalty_factor=0.5", "data.max_response_length=16"),
            ],
            {"overlong": {"tokens": 4, "penalty_factor": 0.5, "max_tokens": 16}},
        ),
        (["reward_model.overlong_buffer.enable=False", "reward_model.overlong_buffer.len=4"], {}),
        (["algorithm.filter_groups.enable=True", "algorithm.filter_groups.metric=reward"], {"dynamic_sampling": True}),
        (
            [*_FILTERED, "algorithm.filter_groups.metric=acc"],
            {"dynamic_sampling_metric": "acc", **_AS_FILTERED},
        ),
        ([*_FILTERED, "algorithm.filter_groups.metric=score"], _AS_FILTERED),
        (
            [*_FILTERED, "algorithm.filter_groups.metric=seq_reward"],
            {"dynamic_sampling_metric": "reward", **_AS_FILTERED},
        ),
        (_FILTERED, {"dynamic_sampling_metric": "reward", **_AS_FILTERED}),
        (["algorithm.filter_groups.enable=False", "algorithm.filter_groups.metric=acc"], {"dynamic_sampling": False}),
        (
            ["algorithm.use_kl_in_reward=True", "algorithm.kl_penalty=low_var_kl"],
            {"reward_kl": {"coef": 0.001, "estimator": "k3"}},
        ),
        (
            ["algorithm.use_kl_in_reward=True", "algorithm.kl_ctrl.type=adaptive", "algorithm.kl_ctrl.kl_coef=0.2"],
            {"reward_kl": {"coef": 0.2, "estimator": "k1", "target": 0.1, "horizon": 10000}},
        ),
        (["algorithm.use_kl_in_reward=False", "algorithm.kl_ctrl.kl_coef=0.2", "algorithm.kl_penalty=full"], {}),
        ([f"{_ACTOR}.use_kl_loss=False", f"{_ACTOR}.kl_loss_coef=0.01", f"{_ACTOR}.entropy_coeff=0"], {}),
        ([f"{_ACTOR}.clip_ratio=0.1", f"{_ACTOR}.clip_ratio_high=0.3"], {"loss": {"clip_low": 0.1, "clip_high": 0.3}}),
        ([f"{_ACTOR}.entropy_coeff=0.01"], {"entropy": {"coef": 0.01}}),
        (
            [*_TAUGHT, f"{_DISTILLED}.loss_mode=k1", f"{_DISTILLED}.use_policy_gradient=True"],
            {"distillation": {"divergence": "reverse", "weight": 1.0}},
        ),
        (
            [*_TAUGHT, f"{_DISTILLED}.use_task_rewards=False", f"{_DISTILLED}.topk=8"],
            {"distillation": {"divergence": "forward"}, "advantage": "none"},
        ),
        (
            [*_TAUGHT, f"{_DISTILLED}.loss_mode=mse", f"{_DISTILLED}.distillation_loss_coef=0.5"],
            {"distillation": {"weight": 0.5}},
        ),
        (
            [
                *_TAUGHT,
                f"{_DISTILLED}.loss_mode=k1",
                f"{_DISTILLED}.use_policy_gradient=True",
                f"{_DISTILLED}.loss_max_clamp=10.0",
            ],
            {"distillation": {"bound": 10.0}},
        ),
        (["distillation.enabled=False", f"{_DISTILLED}.loss_mode=abs", _TAUGHT[1]], {}),
        ([f"{_IS}=sequence", f"{_IS}_threshold=5.0"], {"correction": {"cap": 5.0, "level": "episode"}}),
        ([f"{_IS}=token", f"{_IS}_threshold='0.5_5'"], {"correction": {"kind": "mask", "low": 0.5, "high": 5.0}}),
        (["data.train_batch_size=64", f"{_ACTOR}.ppo_mini_batch_size=16"], {"minibatches": 4}),
        (["data.train_batch_size=8", f"{_ACTOR}.ppo_mini_batch_size=16"], {"minibatches": 1}),
        ([f"{_ACTOR}.ppo_epochs=3"], {"epochs": 3}),
        (["algorithm.adv_estimator=optimal_token_baseline"], {"advantage": "optimal_token"}),
        (
            [f"{_ACTOR}.policy_loss.loss_mode=dro", f"{_ACTOR}.policy_loss.dro_beta=0.3"],
            {"loss": {"kind": "dro", "beta": 0.3}},
        ),
        ([f"{_IS}=null"], {"correction": "none"}),
        ([f"{_BYPASS}=True", f"{_IS}=token", f"{_ACTOR}.policy_loss.loss_mode=gspo"], {"correction": "bypass"}),
        ([f"{_BYPASS}=True", f"{_TYPE}=reinforce"], {"loss": "policy_gradient", "correction": "bypass"}),
        (
            [f"{_BYPASS}=True", f"{_TYPE}=reinforce", f"{_IS}=sequence", f"{_IS}_threshold=3"],
            {
                "loss": "policy_gradient",
                "proximal": "reuse",
                "correction": {"kind": "truncate", "cap": 3.0, "level": "episode"},
            },
        ),
        ([f"{_BYPASS}=False", f"{_TYPE}=reinforce"], {}),
    ],
)
def test_an_algorithm_of_verl_is_ours(theirs: list[str], ours: dict[str, Any]) -> None:
    """Estimators, losses with their bounds, means, KL and entropy terms, corrections, minibatches."""
    keys = [*theirs, *([] if "minibatches" in ours else ["algorithm.minibatches=2"])]
    expected = AlgorithmSettings(**{"minibatches": 2, **ours})
    assert load_config(None, keys).algorithm.model_dump() == expected.model_dump()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["algorithm.use_kl_in_reward=True", "algorithm.kl_penalty=full"],
            "'full' is not available here; there are kl, ",
        ),
        (["algorithm.use_kl_in_reward=True", "algorithm.kl_ctrl.type=pid"], "there are fixed, adaptive"),
        (["actor_rollout_ref.rollout.temprature=1"], "no counterpart here .*did you mean .*rollout.temperature"),
        (
            ["data.response_key=x", "data.prompt_key=y", "critic.shuffle=True"],
            r"response_key has no counterpart here(.|\n)*prompt_key='y' is not possible(.|\n)*shuffle=True is not",
        ),
        (["data.train_files=[a.parquet, a.parquet]"], "two are the same; name each of them once"),
        (["algorithm.adv_estimator=magic"], "'magic' is not available here; there are gae, grpo, rloo"),
        ([*_TAUGHT, f"{_DISTILLED}.loss_mode=abs"], "loss_mode=abs with use_policy_gradient=False: there are k1 with"),
        ([*_TAUGHT, f"{_DISTILLED}.loss_max_clamp=10.0"], "a loss has no bound of its own here"),
        ([*_TAUGHT, "distillation.teacher_models.two.model_path=x"], "there is one teacher"),
        (["distillation.enabled=True"], "algorithm.distillation needs somebody who teaches"),
        ([f"{_IS}=group"], "'group' is not available here; there are token, sequence"),
        ([f"{_IS}=token", f"{_IS}_threshold=much"], "a bound must be a number, or two as in 0.5_5"),
        ([f"{_RS}=token_k1"], "rollout_rs needs rollout_rs_threshold"),
        ([f"{_RS}=seq_max_k1", f"{_RS}_threshold=0.1"], "'seq_max_k1' is not available here; there are token_k1, seq_"),
        ([f"{_RS}='token_k1,token_k3'", f"{_RS}_threshold='1,2,3'"], "2 measures in rollout_rs and 3 thresholds"),
        ([f"{_RS}=token_k3", f"{_RS}_threshold='0.5_2'"], "has one bound, an upper one, and not '0.5_2'"),
        (
            [
                *(f"{_BYPASS}=True", f"{_RS}=token_k1", f"{_RS}_threshold=2"),
                f"{_ACTOR}.loss_agg_mode=seq-mean-token-mean",
            ],
            "reject by sequence, or take token-mean",
        ),
        ([f"{_BYPASS}=True", f"{_TYPE}=awr"], "'awr' is not available here; there are ppo_clip, reinforce"),
        ([f"{_ACTOR}.ppo_mini_batch_size=3", "data.train_batch_size=8"], "a multiple of 3, got 8"),
        (
            ["algorithm.adv_estimator=gae", "data.train_batch_size=512", "critic.ppo_mini_batch_size=128"],
            "the policy's minibatches, which are of 256 rows",
        ),
        (["actor_rollout_ref.rollout.n=4", "gconfig.n_samples=8"], "which is given as 8 too; remove one"),
        (["actor_rollout_ref.rollout.multi_turn.max_turns=4"], "unknown key 'rollout.multi_turn.max_turns'"),
    ],
)
def test_what_cannot_be_is_named(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(None, overrides)


def test_a_teacher_of_verl_is_a_model_beside_the_run() -> None:
    """Where nothing is distilled, nobody teaches."""
    config = load_config(None, _TAUGHT)
    assert config.teacher == ModelTeacherSettings(path="org/teacher")
    own = "distillation.teacher_models.gsm8k"
    named = load_config(None, [_TAUGHT[0], f"{own}.key=openai/gsm8k", f"{own}.model_path=org/teacher"])
    assert named.teacher == config.teacher
    assert load_config(None, ["distillation.enabled=False", _TAUGHT[1]]).teacher == NoTeacherSettings()


@pytest.mark.parametrize(("theirs", "ours"), [(0, 0), (1, 0), (2, 1), (20, 19)])
def test_the_critic_warms_up_as_long_as_in_verl(theirs: int, ours: int) -> None:
    """Whose steps are counted from 1: the policy is trained as soon as the number of the step is reached."""
    of_verl = sum(theirs > global_step for global_step in range(1, 100))
    config = load_config(None, ["algorithm.adv_estimator=gae", f"trainer.critic_warmup={theirs}"])
    assert config.critic.warmup_steps == of_verl == ours
    assert not load_config(None, ["trainer.critic_warmup=null"]).is_set("critic")


def test_a_warm_up_of_verls_is_its_own() -> None:
    """It begins at 0; without one nothing is set."""
    optim = "actor_rollout_ref.actor.optim.lr_warmup_steps"
    optimizer = load_config(None, [f"{optim}=4", "trainer.optimizer.lr=1.0"]).trainer.optimizer
    assert [learning_rate(step, optimizer) for step in range(6)] == [0.0, 0.25, 0.5, 0.75, 1.0, 1.0]
    assert not load_config(None, [f"{optim}=-1"]).trainer.optimizer.model_fields_set


def test_steps_come_before_epochs() -> None:
    """As in verl, whose scripts give both."""
    config = load_config(None, ["trainer.total_epochs=15", "trainer.total_training_steps=2"])
    assert (config.total_train_steps, config.total_train_epochs) == (2, None)


def test_rows_without_a_loop_have_verls() -> None:
    """The default loop where the model is asked by loops; before they had names, tools and users were played anyway."""
    rollout = "actor_rollout_ref.rollout"
    for keys, loop in (
        ([f"{rollout}.mode=async", "data.return_raw_chat=True"], "single_turn_agent"),
        ([f"{rollout}.multi_turn.tool_config_path=tools.yaml"], "tool_agent"),
        ([f"{rollout}.multi_turn.interaction_config_path=users.yaml"], "tool_agent"),
        ([f"{rollout}.mode=async", "data.return_raw_chat=True", f"{rollout}.agent.default_agent_loop=mine"], "mine"),
        ([f"{rollout}.mode=async", "data.return_raw_chat=True", "workflow=a:B"], None),
        ([f"{rollout}.mode=async"], None),
    ):
        agent = load_config(None, keys).rollout.agent
        assert isinstance(agent, LoopSettings) and agent.default_agent_loop == loop


def test_keys_of_machines_and_engines_are_taken(caplog: pytest.LogCaptureFixture) -> None:
    """What says how verl cuts, offloads and profiles moves nothing here; what changes a loss is refused."""
    megatron = f"{_ACTOR}.megatron"
    load_config(
        None,
        [
            f"{_ACTOR}.strategy=fsdp2",
            f"{_ACTOR}.fsdp_config.fsdp_size=8",
            f"{megatron}.tensor_model_parallel_size=4",
            f"{megatron}.override_transformer_config.recompute_method=uniform",
            "actor_rollout_ref.rollout.engine_kwargs.vllm.cudagraph_mode=x",
            "ray_kwargs.ray_init.num_cpus=8",
            "data.prompt_key=prompt",
            "trainer.rollout_data_dir=x",
            "trainer.resume_mode=auto",
            "reward_model.reward_manager=dapo",
            "critic.strategy=fsdp",
            "data.truncation=left",
            "trainer.nnodes=2",
            "actor_rollout_ref.rollout.mode=sync",
            "model_engine=megatron",
            "hydra.run.dir=x",
            "trainer.resume_from_path=x",
            f"{megatron}.override_transformer_config.moe_router_bias_update_rate=0",
            f"{_ACTOR}.optim.min_lr=1e-7",
            f"{_ACTOR}.optim.lr_decay_steps=40",
        ],
    )
    assert "ray_kwargs.ray_init.num_cpus" in caplog.text and "trainer.rollout_data_dir" in caplog.text
    for refused in (
        f"{megatron}.override_transformer_config.moe_aux_loss_coeff=0.01",
        "data.prompt_key=question",
        "trainer.resume_mode=resume_path",
        f"{_ACTOR}.optim.min_lr=1e-7",
        "reward_model.reward_manager=prime",
    ):
        with pytest.raises(ConfigError, match=refused.partition("=")[0]):
            load_config(None, [refused, f"{_ACTOR}.optim.lr_decay_style=cosine"])
    share = [f"{_ACTOR}.optim.lr_warmup_steps_ratio=0.1", "trainer.total_training_steps=50"]
    optimizer = load_config(None, share).trainer.optimizer
    assert (optimizer.warmup_steps, optimizer.warmup_from_zero) == (5, True)
    assert load_config(None, [*share, f"{_ACTOR}.optim.lr_warmup_steps=3"]).trainer.optimizer.warmup_steps == 3
    with pytest.raises(ConfigError, match="how many steps there will be is not known"):
        load_config(None, share[:1])
    falls = load_config(None, [f"{_ACTOR}.optim.lr_decay_style=cosine", f"{_ACTOR}.optim.lr_decay_steps=40"])
    assert (falls.trainer.optimizer.decay, falls.trainer.optimizer.total_steps) == ("cosine", 40)


def test_a_run_lies_where_verl_would_save_it() -> None:
    """So that two scripts whose experiments have one name are two runs; Ludus's own key comes first."""
    asked = ["trainer.default_local_dir=/ckpts/mine", "trainer.experiment_name=first"]
    assert load_config(None, asked).folder == Path("/ckpts/mine/first")
    assert load_config(None, [*asked, "run_root=elsewhere"]).folder == Path("elsewhere/first")
    assert load_config(None, asked[1:]).folder == Path("runs/first")


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
    for target in (own for key in KEYS.values() if isinstance(key, Key | Values) for own in key.ours):
        assert target.removesuffix(".*") in known, target


def test_several_files_are_several_sources() -> None:
    """Each is called as its file, or with its folder where files have the same name; its share is its rows'."""
    config = load_config(None, ["data.train_files=[~/data/gsm8k/train.parquet, ~/data/math/train.parquet]"])
    paths = {name: source.path for name, source in config.train_dataset.mix.items()}
    assert paths == {"gsm8k-train": "~/data/gsm8k/train.parquet", "math-train": "~/data/math/train.parquet"}
    assert all(source.weight is None for source in config.train_dataset.mix.values())
    held_out = load_config(None, ["data.val_files=[aime.parquet, math.parquet]"]).valid_dataset
    assert list(held_out.mix) == ["aime", "math"]


def test_what_verls_script_says_of_its_machine_is_listed_once(caplog: pytest.LogCaptureFixture) -> None:
    """Keys of run_qwen2.5-3b_gsm8k_tool_agent_mlflow.sh that nothing here needs: taken, and told in one line."""
    load_config(
        None,
        [
            "data.truncation=error",
            "actor_rollout_ref.rollout.name=sglang",
            "actor_rollout_ref.rollout.tensor_model_parallel_size=2",
            "actor_rollout_ref.actor.fsdp_config.param_offload=False",
            "actor_rollout_ref.rollout.trace.backend=mlflow",
            "actor_rollout_ref.rollout.trace.token2text=True",
            "algorithm.use_kl_in_reward=False",
            'trainer.logger=["console","mlflow"]',
            "trainer.nnodes=1",
        ],
    )
    (record,) = [each for each in caplog.records if each.name == "ludus.compat.keys"]
    assert "rollout.name (engine.kind chooses" in record.getMessage()
    assert "trainer.logger" not in record.getMessage()


@pytest.mark.parametrize(
    ("given", "to", "project", "traces"),
    [
        (["trainer.logger=['console','wandb']", "trainer.project_name=p"], ("wandb",), "p", 0),
        (["trainer.logger=tensorboard"], ("tensorboard",), "ludus", 0),
        (["trainer.logger=['console','mlflow']", "actor_rollout_ref.rollout.trace.backend=mlflow"], *_TRACED),
        (["actor_rollout_ref.rollout.trace.backend=mlflow"], *_TRACED),
        (["trainer.logger=['console']", "trainer.project_name=p"], (), "ludus", None),
        (["trainer.logger=['console','swanlab','trackio']"], ("trackio",), "ludus", 0),
    ],
)
def test_loggers_are_trackers(given: list[str], to: tuple[str, ...], project: str, traces: int | None) -> None:
    """Those that there are get metrics, and traces where they are asked for."""
    trackers = load_config(None, given).trackers
    assert (trackers.to, trackers.project, trackers.traces_per_step) == (to, project, traces)


def test_a_tracer_that_there_is_not() -> None:
    """It is refused, and the others are named."""
    with pytest.raises(ConfigError, match="mlflow, trackio"):
        load_config(None, ["actor_rollout_ref.rollout.trace.backend=weave"])


@pytest.mark.parametrize(
    ("given", "num_cards", "placement"),
    [
        (["actor_rollout_ref.hybrid_engine=true", "engine.kind=vllm"], 1, "shared"),
        (["actor_rollout_ref.hybrid_engine=true", "engine.kind=vllm", "trainer.n_gpus_per_node=1"], 1, "shared"),
        (["actor_rollout_ref.hybrid_engine=true", "engine.kind=vllm", "engine.placement=split"], 1, "split"),
        (["actor_rollout_ref.hybrid_engine=true", "engine.kind=vllm", "model.device=cpu"], 1, "split"),
        (["actor_rollout_ref.hybrid_engine=true", "engine.kind=vllm"], 0, "split"),
        (["actor_rollout_ref.hybrid_engine=true", "engine.kind=vllm"], 2, "split"),
        (["actor_rollout_ref.hybrid_engine=true", "engine.kind=vllm", "trainer.n_gpus_per_node=8"], 1, "split"),
        (["actor_rollout_ref.hybrid_engine=true"], 1, "split"),
        (["actor_rollout_ref.hybrid_engine=false", "engine.kind=vllm"], 1, "split"),
    ],
)
def test_a_hybrid_engine_has_the_trainers_card_in_turns(
    given: list[str], num_cards: int, placement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is one card and vLLM is to sample; the key changes nothing elsewhere."""
    monkeypatch.setattr("ludus.compat.verl.keys.find_cards", lambda: tuple(range(num_cards)))
    assert load_config(None, given).engine.placement == placement
