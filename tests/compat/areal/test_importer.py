"""AReaL's YAML as a configuration of Ludus."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
import yaml

from ludus.algorithms.corrections import BypassSettings, NoneSettings
from ludus.algorithms.estimators.gae import GaeSettings
from ludus.algorithms.estimators.group import GroupSettings
from ludus.algorithms.estimators.none import NoneSettings as NoneAdvantage
from ludus.algorithms.losses.clip import ClipSettings
from ludus.algorithms.settings import AlgorithmSettings
from ludus.compat.areal import experiment
from ludus.compat.areal.importer import Imported, import_areal
from ludus.compat.areal.keys import DEFAULTS, KEYS, OF_OPTIMIZER, OF_REFERENCE
from ludus.compat.config import Config
from ludus.compat.importing.interpolate import leaves
from ludus.compat.keys import Key
from ludus.errors import ConfigError
from ludus.processes.placement import SlurmScheduler
from ludus.settings import settings_keys
from ludus.teachers.settings import ModelTeacherSettings

ACTOR: dict[str, Any] = {
    "path": "Qwen/Qwen3-0.6B",
    "dtype": "bfloat16",
    "optimizer": {"type": "adam", "lr": 1.7e-5, "beta1": 0.9, "beta2": 0.999, "gradient_clipping": 1.0},
    "eps_clip": 0.4,
    "ppo_n_minibatches": 1,
    "recompute_logprob": True,
    "use_decoupled_loss": True,
    "reward_norm": {"mean_level": "group", "std_level": "group", "group_size": 4},
}


def imported(data: dict[str, Any]) -> Imported:
    return import_areal(data)


def config_of(data: dict[str, Any]) -> Config:
    return Config(**import_areal(data).config)


def fates(data: dict[str, Any]) -> dict[str, str]:
    return {entry.name: entry.fate for entry in import_areal(data).entries}


def actor(**changes: Any) -> dict[str, Any]:
    return {"actor": {**ACTOR, **changes}}


def test_every_target_is_a_key_of_ludus() -> None:
    """The table names nothing that was renamed since."""
    known = {".".join(path) for path in settings_keys(Config)}
    for target in (own for key in KEYS.values() if isinstance(key, Key) for own in key.ours):
        assert target.partition("=")[0].removesuffix(".*") in known, target


def test_what_has_the_same_meaning_is_taken() -> None:
    """Names and numbers, from wherever they stand there."""
    config = config_of(
        {
            "experiment_name": "gsm8k grpo",
            "trial_name": "trial/0",
            "cluster": {"fileroot": "out", "n_nodes": 1},
            "seed": 7,
            "total_train_epochs": 3,
            "rollout": {"max_head_offpolicyness": 2, "agent": {"turn_discount": 0.9, "mode": "inline"}},
            "gconfig": {"n_samples": 4, "max_new_tokens": 64, "top_k": 100_000_000},
            "train_dataset": {"batch_size": 16, "path": "rows.jsonl"},
            **actor(),
        }
    )
    assert (config.name, config.run_root, config.seed, config.total_train_epochs) == ("gsm8k-grpo-trial-0", "out", 7, 3)
    assert (config.model.path, config.trainer.optimizer.lr) == ("Qwen/Qwen3-0.6B", 1.7e-5)
    assert (config.trainer.optimizer.betas, config.rollout.agent.turn_discount) == ((0.9, 0.999), 0.9)
    assert (config.gconfig.n_samples, config.gconfig.top_k) == (4, 0)
    assert config.train_dataset.batch_size == 16
    assert (config.rollout.max_head_offpolicyness, config.rollout.stale_tokens) == (2, "train")


def test_every_key_that_is_set_is_in_the_report() -> None:
    """Taken or not; keys that nobody knows are left out by name."""
    data = {
        "experiment_name": "e",
        "trial_name": "t",
        "brand_new": {"key": 1, "empty": None},
        "rollout": {"openai": {"mode": "inline", "tool_call_parser": "qwen25"}, "queue_size": 5},
        "saver": {"freq_epochs": 1},
        "evaluator": {"freq_epochs": 1},
        "gconfig": {"max_tokens": 2048, "greedy": False, "min_new_tokens": 3},
        "sglang": {"max_running_requests": 8, "context_length": 1024},
        "actor": {**ACTOR, "adv_norm": {"mean_level": "group"}, "reward_scaling": 10.0, "c_clip": 3.0, "kl_ctl": 0.1},
        "ref": {"path": ACTOR["path"]},
        "train_dataset": {"path": "openai/gsm8k", "max_length": 1024, "drop_last": False},
        "stats_logger": {"wandb": {"mode": "online"}, "swanlab": {"mode": "cloud"}},
    }
    told = fates(data)
    assert set(told) == {key for key, value in leaves(data).items() if value is not None}
    left_out = {key for key, fate in told.items() if fate == "left out"}
    assert left_out == {
        "brand_new.key",
        "rollout.queue_size",
        "saver.freq_epochs",
        "gconfig.min_new_tokens",
        "actor.adv_norm.mean_level",
        "train_dataset.path",
        "train_dataset.max_length",
        "train_dataset.drop_last",
        "stats_logger.swanlab.mode",
    }
    assert told["rollout.openai.mode"] == told["stats_logger.wandb.mode"] == "taken"


def test_the_ratio_is_to_whom_it_was() -> None:
    """Decoupled or recomputed: to the policy before the batch, weighed by rejection sampling alone. Otherwise the ratio
    is to the sampler."""
    decoupled = config_of(actor())
    assert decoupled.algorithm.correction == NoneSettings()
    assert not decoupled.algorithm.loss.is_set("clip_low")  # with one minibatch there is nothing to clip
    plain = config_of(actor(use_decoupled_loss=False, recompute_logprob=False))
    assert plain.algorithm.correction == BypassSettings()
    assert plain.algorithm.loss == ClipSettings(clip_low=0.4, clip_high=0.4)
    recomputed = config_of(actor(use_decoupled_loss=False, recompute_logprob=True))
    assert recomputed.algorithm.correction == NoneSettings()
    several = config_of(actor(ppo_n_minibatches=4, eps_clip=0.2, eps_clip_higher=0.28))
    assert several.algorithm.minibatches == 4 and several.algorithm.loss == ClipSettings(clip_high=0.28)


@pytest.mark.parametrize(
    ("changes", "ours"),
    [
        ({"importance_sampling_level": "sequence"}, {"loss": {"level": "episode", "clip_low": 0.4, "clip_high": 0.4}}),
        ({"c_clip": 3.0, "eps_clip": 0.2}, {"loss": {"dual_clip": 3.0}}),
        (
            {
                "eps_clip": 0.2,
                "overlong_reward_penalty": True,
                "overlong_tokens": 8,
                "overlong_penalty_factor": 0.5,
            },
            {"overlong": {"tokens": 8, "penalty_factor": 0.5, "max_tokens": 64}},
        ),
        ({"eps_clip": 0.2, "overlong_reward_penalty": False, "overlong_tokens": 8}, {}),
        ({"use_sapo_loss": True, "sapo_tau_neg": 1.1}, {"loss": {"kind": "sapo", "tau_negative": 1.1}}),
        ({"use_cispo_loss": True, "eps_clip": 0.2}, {"loss": {"kind": "cispo", "clip_low": 0.2, "clip_high": 0.2}}),
        (
            {"eps_clip": 0.2, "kl_ctl": 0.1, "kl_estimator": "k1"},
            {"reward_kl": {"coef": 0.1, "estimator": "k1"}},
        ),
        ({"eps_clip": 0.2, "prox_logp_method": "recompute"}, {}),
        ({"eps_clip": 0.2, "prox_logp_method": "loglinear"}, {"proximal": "interpolate"}),
        ({"eps_clip": 0.2, "m2_threshold": 0.04}, {"second_moment": 0.04}),
    ],
)
def test_losses_and_corrections_of_areal(changes: dict[str, Any], ours: dict[str, Any]) -> None:
    """GSPO's level, dual clip, SAPO, CISPO, the estimator of the KL term."""
    config = config_of({**actor(ppo_n_minibatches=4, **changes), "gconfig": {"max_new_tokens": 64}})
    expected = AlgorithmSettings(**{"minibatches": 4, "correction": "none", **ours})
    assert config.algorithm.model_dump() == expected.model_dump()


def test_an_interpolated_policy_is_clipped_in_one_step_too() -> None:
    """Its ratio is not 1, and bounds act."""
    algorithm = config_of(actor(prox_logp_method="loglinear", eps_clip=0.3)).algorithm
    assert algorithm.minibatches == 1 and algorithm.loss == ClipSettings(clip_low=0.3, clip_high=0.3)
    assert not [*algorithm.idle()]


def test_a_proximal_policy_of_nobody_is_said() -> None:
    """Where AReaL has one policy to compare with, the method is not needed, nor is the bound on how far two are apart,
    and both say so."""
    alone = {"use_decoupled_loss": False, "recompute_logprob": False, "eps_clip": 0.2}
    data = actor(**alone, prox_logp_method="loglinear", m2_threshold=0.04)
    assert [fates(data)[f"actor.{key}"] for key in ("prox_logp_method", "m2_threshold")] == ["not needed"] * 2
    assert config_of(data).algorithm == config_of(actor(**alone)).algorithm
    recomputed = actor(use_decoupled_loss=False, recompute_logprob=True, m2_threshold=0.04)
    assert fates(recomputed)["actor.m2_threshold"] == "not needed"
    assert fates(actor(prox_logp_method="magic"))["actor.prox_logp_method"] == "left out"


CRITIC = {
    "path": "org/critic",
    "is_critic": True,
    "eps_clip": 0.3,
    "ppo_n_minibatches": 1,
    "dtype": "bfloat16",
    "optimizer": {"type": "adam", "lr": 3e-5, "beta1": 0.8, "gradient_clipping": 0.5, "lr_scheduler_type": "cosine"},
}


def test_a_critic_makes_the_advantages() -> None:
    """PPO: values, discounts from token to token and from turn to turn, whitened if AReaL whitens; and its own keys."""
    batch = {"mean_level": "batch", "std_level": "batch"}
    data = {**actor(gae_lambda=0.95, discount=0.99, adv_norm=batch, reward_norm=None), "critic": CRITIC}
    config = config_of(data)
    assert config.has_critic and config.algorithm.advantage == GaeSettings(lam=0.95, gamma=0.99, whiten=True)
    assert config.rollout.agent.turn_discount == 0.99
    critic, optimizer = config.critic, config.critic.optimizer
    assert (critic.path, critic.clip_range) == ("org/critic", 0.3)
    assert (optimizer.lr, optimizer.betas, optimizer.max_grad_norm) == (3e-5, (0.8, 0.999), 0.5)
    assert optimizer.decay == "cosine" and "left out" not in fates(data).values()
    plain = config_of({**actor(adv_norm=None, reward_norm=None), "critic": {"path": "org/critic"}})
    assert plain.algorithm.advantage == GaeSettings(whiten=False) and plain.rollout.agent.turn_discount == 1.0


def test_what_a_critic_does_not_do_is_left_out() -> None:
    """Norms of rewards beside values, rewards that are scaled for its targets, minibatches of its own; without it,
    discounts."""
    data = {
        **actor(reward_scaling=10.0, reward_bias=-0.5),
        "critic": {**CRITIC, "ppo_n_minibatches": 2, "lora_rank": 4},
    }
    left_out = {name for name, fate in fates(data).items() if fate == "left out"}
    own = {"critic.ppo_n_minibatches", "critic.lora_rank", "actor.reward_scaling", "actor.reward_bias"}
    assert left_out == own | {f"actor.reward_norm.{name}" for name in ("mean_level", "std_level", "group_size")}
    told = fates(actor(gae_lambda=0.95, discount=0.9))
    assert (told["actor.gae_lambda"], told["actor.discount"]) == ("left out", "left out")


def test_a_scheduler_is_the_same_here() -> None:
    """Its type, and the nodes of a job; nodes without a scheduler that has any are left out."""
    config = config_of({"scheduler": {"type": "slurm"}, "cluster": {"n_nodes": 2}})
    assert config.scheduler == SlurmScheduler(slurm={"nodes": 2})  # type: ignore[arg-type]
    assert fates({"scheduler": {"type": "ray"}, "cluster": {"n_nodes": 2}})["cluster.n_nodes"] == "not needed"
    assert fates({"cluster": {"n_nodes": 2}})["cluster.n_nodes"] == "left out"


def test_minibatches_that_are_not_set_are_areals_own() -> None:
    """Four, where Ludus takes one."""
    data = actor()
    del data["actor"]["ppo_n_minibatches"]
    assert config_of(data).algorithm.minibatches == 4
    assert "algorithm" not in imported({"seed": 1}).config


BATCH = {"mean_level": "batch", "std_level": "batch"}
GROUP = {"mean_level": "group", "std_level": "group"}
CENTERED = {"mean_level": "group", "std_level": None}


@pytest.mark.parametrize(
    ("rewards", "advantages", "expected"),
    [
        (None, BATCH, {"kind": "whitened"}),
        (GROUP, BATCH, {"kind": "whitened", "baseline": "mean", "scale": "std"}),
        (CENTERED, BATCH, {"kind": "whitened", "baseline": "mean"}),
        ({**CENTERED, "mean_leave1out": True}, BATCH, {"kind": "whitened", "baseline": "mean"}),
        ({"mean_level": "group"}, BATCH, {"kind": "whitened", "baseline": "mean"}),
        (BATCH, {}, {"kind": "whitened"}),
        ({}, None, {"kind": "whitened", "over": "episodes"}),
        (GROUP, None, {}),
        (CENTERED, None, {"scale": "none"}),
        ({**CENTERED, "mean_leave1out": True}, None, {"baseline": "leave_one_out", "scale": "none"}),
        (None, None, {"baseline": "none", "scale": "none"}),
    ],
)
def test_norms_of_rewards_and_advantages_become_one(rewards: Any, advantages: Any, expected: dict[str, str]) -> None:
    """As its examples for agents have them (REINFORCE over the batch), its GRPO, Dr.GRPO, RLOO, LitePPO; nothing is
    normalised where a section is missing, and a level that it does not name is the batch."""
    data = actor(reward_norm=rewards, adv_norm=advantages)
    assert config_of(data).algorithm.advantage == AlgorithmSettings(advantage=expected).advantage
    assert {fate for key, fate in fates(data).items() if "_norm" in key} == {"taken"}


def test_norms_that_are_not_here_are_said() -> None:
    """Rewards become GRPO's, as the report says; advantages are taken as they are."""
    assert config_of(actor(reward_norm={"mean_level": "group"})).algorithm.advantage == GroupSettings(scale="batch")
    assert fates(actor(reward_norm={"mean_level": "group"}))["actor.reward_norm.mean_level"] == "changed"
    told = fates(actor(reward_norm={"mean_level": "batch", "std_level": "group"}, adv_norm=GROUP))
    assert {told[f"actor.reward_norm.{name}"] for name in BATCH} == {"changed"}
    assert {told[f"actor.adv_norm.{name}"] for name in BATCH} == {"left out"}


def test_scaling_of_rewards_cancels_or_is_left_out() -> None:
    """Divided by a deviation it does, as with AReaL's agents; as Dr.GRPO it would act, and without a mean a summand."""
    scaled = {"reward_scaling": 10.0, "reward_bias": -0.5}
    for norms in ({}, {"reward_norm": None, "adv_norm": BATCH}, {"reward_norm": CENTERED, "adv_norm": BATCH}):
        told = fates(actor(**scaled, **norms))
        assert (told["actor.reward_scaling"], told["actor.reward_bias"]) == ("not needed", "not needed")
    told = fates(actor(**scaled, reward_norm=CENTERED))
    assert (told["actor.reward_scaling"], told["actor.reward_bias"]) == ("left out", "not needed")
    assert fates(actor(**scaled, reward_norm=None))["actor.reward_bias"] == "left out"


def test_what_is_not_given_is_areals_default() -> None:
    """With an actor: one episode a row, an hour for it, AReaL's optimizer, its penalty if there is a reference."""
    config = config_of({"actor": {"path": "x", "optimizer": {"type": "adam", "beta2": 0.95}}, "ref": {"path": "x"}})
    optimizer = config.trainer.optimizer
    assert (optimizer.lr, optimizer.weight_decay, optimizer.betas) == (0.001, 0.01, (0.9, 0.95))
    assert (config.gconfig.n_samples, config.train_dataset.batch_size, config.rollout.episode_timeout_s) == (1, 1, 3600)
    assert config.algorithm.reward_kl is not None and config.algorithm.reward_kl.coef == 0.1
    assert config.algorithm.advantage == GroupSettings(baseline="none", scale="none")
    assert config_of({"actor": {"path": "x"}}).algorithm.reward_kl is None
    whole = {"agent": {"session_timeout_seconds": 60}, "request_timeout": 60}
    data = {"gconfig": {"n_samples": 2}, "train_dataset": {"batch_size": 2}, "rollout": whole}
    plain = {"path": "x", "ppo_n_minibatches": 1, "reward_norm": None, "adv_norm": None}
    assert config_of({**data, "actor": plain}).algorithm.correction == BypassSettings()
    assert config_of({"gconfig": {"temperature": 0.5}}).gconfig.n_samples == Config().gconfig.n_samples


def test_the_defaults_are_areals() -> None:
    """As its classes have them."""
    theirs = {
        **{f"actor.{each.name}": each.default for each in fields(experiment.PPOActorConfig)},
        **{f"gconfig.{each.name}": each.default for each in fields(experiment.GenerationHyperparameters)},
        **{f"train_dataset.{each.name}": each.default for each in fields(experiment.TrainDatasetConfig)},
        **{f"rollout.{each.name}": each.default for each in fields(experiment.InferenceEngineConfig)},
        **{f"rollout.agent.{each.name}": each.default for each in fields(experiment.AgentConfig)},
    }
    assert {name: theirs[name] for name in {**DEFAULTS, **OF_REFERENCE}} == {**DEFAULTS, **OF_REFERENCE}
    optimizer = {each.name: each.default for each in fields(experiment.OptimizerConfig)}
    assert {name: optimizer[name] for name in OF_OPTIMIZER} == OF_OPTIMIZER


def test_adapters() -> None:
    """LoRA with AReaL's numbers, every linear layer as `all-linear`."""
    config = config_of(actor(use_lora=True, lora_rank=16, target_modules=["all-linear"]))
    assert config.model.lora is not None
    assert (config.model.lora.rank, config.model.lora.alpha, config.model.lora.target_modules) == (16, 16, None)
    assert config_of(actor(use_lora=False, lora_rank=16)).model.lora is None


def test_schedules_need_a_number_of_steps() -> None:
    """A share of the steps is a number where they are counted, and is left out where they are not."""
    optimizer = {**ACTOR["optimizer"], "warmup_steps_proportion": 0.1, "lr_scheduler_type": "cosine"}
    config = config_of({"total_train_steps": 50, "total_train_epochs": 9, **actor(optimizer=optimizer)})
    assert config.trainer.optimizer.warmup_steps == 5 and config.trainer.optimizer.warmup_from_zero
    few = config_of({"total_train_steps": 9, **actor(optimizer=optimizer)}).trainer.optimizer
    assert (few.warmup_steps, few.warmup_from_zero) == (0, False)
    assert (config.trainer.optimizer.decay, config.total_train_steps, config.total_train_epochs) == ("cosine", 50, None)
    told = fates({"total_train_epochs": 3, **actor(optimizer=optimizer)})
    assert told["actor.optimizer.warmup_steps_proportion"] == "left out"


def test_keys_that_act_in_one_mode_alone() -> None:
    """Workers of subproc, idle sessions of online."""
    agent = {"subproc_max_workers": 8, "session_timeout_seconds": 60}
    assert fates({"rollout": {"agent": {"mode": "inline", **agent}}})["rollout.agent.subproc_max_workers"] == (
        "not needed"
    )
    online = config_of({"rollout": {"request_timeout": 3600, "agent": {"mode": "online", **agent}}})
    assert online.rollout.episode_timeout_s == 60


def test_greedy_and_evaluation() -> None:
    """Greedy is a temperature of 0; evaluation has its own."""
    config = config_of(
        {"gconfig": {"temperature": 1.0}, "eval_gconfig": {"greedy": True, "temperature": 1.0, "n_samples": 2}}
    )
    assert config.eval_gconfig is not None
    assert (config.eval_gconfig.temperature, config.eval_gconfig.n_samples) == (0.0, 2)


def test_values_that_are_not_in_the_file_are_left_out() -> None:
    """Those that must be given, and those of the environment."""
    told = fates({"actor": {"path": "???"}, "seed": "${oc.env:SEED}", "cluster": {"fileroot": "???"}})
    assert told == dict.fromkeys(("actor.path", "seed", "cluster.fileroot"), "left out")


def test_agents_of_areal_have_their_modules_here() -> None:
    """Those that are here; a workflow of the user's own keeps its name."""
    ready = "areal.workflow.multi_turn.MultiTurnWorkflow"
    assert imported({"workflow": ready}).config["workflow"] == f"ludus.compat.{ready}"
    assert fates({"workflow": "areal.workflow.openai.math_agent.MathAgent"}) == {"workflow": "changed"}
    assert fates({"workflow": "areal.workflow.vision_rlvr.VisionRLVRWorkflow"}) == {"workflow": "left out"}
    assert fates({"workflow": "areal.workflow.multi_turn.NoSuchAgent"}) == {"workflow": "left out"}
    assert imported({"workflow": "mine.Agent"}).config["workflow"] == "mine.Agent"


def test_a_value_that_cannot_be_is_said() -> None:
    """Nothing is written that `ludus train` would refuse."""
    with pytest.raises(ConfigError, match=r"would not load: .*n_samples=0"):
        import_areal({"gconfig": {"n_samples": 0}})


def test_keys_of_ones_own_agent_are_told_from_areals() -> None:
    """Users of AReaL extend its configuration for their agents."""
    notes = {
        entry.name: entry.note for entry in import_areal({"econfig": {"domain": "x"}, "actor": {"new": 1}}).entries
    }
    assert "workflow_kwargs" in notes["econfig.domain"]
    assert notes["actor.new"] == "Ludus knows no such key"


def test_what_is_written_is_yaml() -> None:
    """And loads as the same configuration."""
    found = imported(actor())
    assert yaml.safe_load(found.to_yaml()) == found.config


def test_arguments_of_agents_are_taken_whole() -> None:
    """Whatever they are called."""
    found = imported({"workflow_kwargs": {"num_turns": 2, "judge": {"model": "m"}}})
    assert found.config == {"workflow_kwargs": {"num_turns": 2, "judge": {"model": "m"}}}
    assert {entry.fate for entry in found.entries} == {"taken"}


def test_of_several_names_for_one_key_the_first_counts() -> None:
    """The others are in the report with the one that says it."""
    data = {"saver": {"freq_steps": 5}, "recover": {"freq_steps": 7, "freq_secs": 60}}
    assert config_of(data).checkpoint.every_seconds == 60
    assert config_of(data).checkpoint.every_steps == 5
    (note,) = (entry.note for entry in imported(data).entries if entry.name == "recover.freq_steps")
    assert note == "saver.freq_steps says it"


@pytest.mark.parametrize(
    ("given", "advantage", "weight"),
    [
        ({}, GroupSettings(baseline="none", scale="none"), 0.005),
        (
            {"distill_loss_weight": 0.5, "rl_loss_weight": 2.0},
            GroupSettings(baseline="none", scale="none"),
            0.25,
        ),
        ({"distill_loss_weight": 1.0, "rl_loss_weight": 0}, NoneAdvantage(), 1.0),
    ],
)
def test_a_teacher_is_loaded_and_weighed(given: dict[str, Any], advantage: Any, weight: float) -> None:
    """Beside the task's advantage, or alone; with AReaL's weights where none are given."""
    data = {"actor": {"path": "x"}, "teacher": {"path": "org/teacher", "backend": "fsdp:d1", **given}}
    config = config_of(data)
    assert config.teacher == ModelTeacherSettings(path="org/teacher")
    assert config.algorithm.advantage == advantage and config.algorithm.distillation is not None
    assert config.algorithm.distillation.weight == weight
    of_train = {"train": {"path": "org/teacher"}, "engine_type": "train", **given}
    assert config_of({"actor": {"path": "x"}, "teacher": of_train}).teacher == config.teacher
    assert fates({"actor": {"path": "x"}, "teacher": {"rl_loss_weight": 0}})["teacher.rl_loss_weight"] == "not needed"
