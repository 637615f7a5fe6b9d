"""AReaL's configuration classes: what a user's dataclass adds, which keys say something about the run."""

from __future__ import annotations

import copy
import logging
import pickle
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from ludus.algorithms.settings import AlgorithmSettings
from ludus.compat import overrides
from ludus.compat.areal import PPOTrainer
from ludus.compat.areal.api.cli_args import (
    GenerationHyperparameters,
    GRPOConfig,
    InferenceEngineConfig,
    OptimizerConfig,
    PPOActorConfig,
    PPOConfig,
    load_expr_config,
)
from ludus.compat.areal.experiment import config_of
from ludus.errors import ConfigError, UserError
from ludus.runs.store import RunStore

AREAL = """
experiment_name: sums
trial_name: first
cluster: {fileroot: FOLDER}
gconfig: {n_samples: 4, max_new_tokens: 64}
rollout: {backend: "sglang:d1", max_head_offpolicyness: 2, agent: {turn_discount: 0.5}}
actor: {path: some-model, optimizer: {lr: 1e-3, type: adam}, reward_norm: null, kl_ctl: 0.0, ppo_n_minibatches: 1}
tokenizer_path: ${actor.path}
train_dataset: {path: openai/gsm8k, type: rl, batch_size: 8, max_length: 100}
valid_dataset: {path: openai/gsm8k, type: rl, batch_size: 8}
max_turns: 3
"""


@dataclass
class Judge:
    name: str = "none"
    strict: bool = False


@dataclass
class Mine(PPOConfig):
    """As a user extends one."""

    workflow: str = field(default="mine.Agent", metadata={"help": "What plays."})
    max_turns: int = 10
    temperature_of_judge: float = 0.5
    judge: Judge = field(default_factory=Judge)
    total_train_epochs: int = 7


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "run.yaml"
    path.write_text(AREAL.replace("FOLDER", str(tmp_path)))
    return str(path)


def test_a_users_class_has_its_own_and_areals_fields(file: str) -> None:
    """Given in the file, on the command line, or as the class says; references are resolved."""
    given = ["--config", file, "max_turns=4", "+judge.strict=true", "temperature_of_judge=1e-1"]
    config, path = load_expr_config(["train.py", *given], Mine)
    assert path == file and isinstance(config, Mine) and isinstance(config, PPOConfig)
    assert (config.max_turns, config.workflow, config.judge) == (4, "mine.Agent", Judge("none", strict=True))
    assert config.temperature_of_judge == 0.1
    assert (config.tokenizer_path, config.actor.optimizer.lr, config.actor.reward_norm) == ("some-model", 0.001, None)
    assert (config.train_dataset.path, config.train_dataset.type) == ("openai/gsm8k", "rl")


def test_what_is_not_given_is_as_areal_has_it() -> None:
    """Numbers of AReaL 1.0.4; sections that it leaves empty are None."""
    config = GRPOConfig()
    assert (config.gconfig.temperature, config.gconfig.max_tokens, config.gconfig.n_samples) == (1.0, 32768, 1)
    assert (config.actor.ppo_n_minibatches, config.actor.eps_clip, config.actor.optimizer) == (4, 0.2, None)
    assert (config.rollout.request_timeout, config.rollout.agent.mode) == (3600, "inline")
    assert config.valid_dataset is None and config.recover.mode == "disabled"
    assert config.actor.target_modules is not GRPOConfig().actor.target_modules


def test_what_is_given_makes_the_run(file: str) -> None:
    """AReaL's keys as `ludus import areal` takes them; the class's other defaults count as given; the script reads its
    data itself."""
    config, _ = load_expr_config(["--config", file], Mine)
    ours = config_of(config)
    assert (ours.name, ours.gconfig.n_samples, ours.gconfig.max_new_tokens) == ("sums-first", 4, 64)
    assert (ours.rollout.max_head_offpolicyness, ours.rollout.agent.turn_discount) == (2, 0.5)
    assert (ours.model.path, ours.trainer.optimizer.lr, ours.algorithm.minibatches) == ("some-model", 0.001, 1)
    assert (ours.total_train_epochs, ours.train_dataset.batch_size, ours.train_dataset.path) == (7, 8, None)


def test_keys_of_ludus_stand_beside_areals(file: str) -> None:
    """Where AReaL has no key of the name, at the top or below one of its sections."""
    given = ["--config", file, "engine.kind=local", "rollout.retries=5", "model.chat_template=chatml-tools"]
    ours = config_of(load_expr_config(given, Mine)[0])
    assert (ours.rollout.retries, ours.rollout.max_head_offpolicyness) == (5, 2)
    assert ours.model.chat_template == "chatml-tools" and ours.model.path == "some-model"


def test_keys_of_ludus_come_before_areals_defaults(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the script's command line and on that of `ludus run`: a preset is all of itself."""
    given = ["--config", file, "algorithm.name=dapo", "rollout.episode_timeout_s=60", "actor.eps_clip=0.4"]
    ours = config_of(load_expr_config(given, Mine)[0])
    assert ours.algorithm.model_dump() == AlgorithmSettings(name="dapo").model_dump()
    assert ours.rollout.episode_timeout_s == 60
    assert config_of(load_expr_config(["--config", file], Mine)[0]).rollout.episode_timeout_s == 3600
    monkeypatch.setenv(overrides.SETTINGS, "algorithm.advantage=whitened")
    assert config_of(load_expr_config(["--config", file], Mine)[0]).algorithm.advantage.kind == "whitened"


@pytest.mark.parametrize(
    "key", ["actor.optimizer_dtype=float32", "rollout.lora_name=x", "vllm.gdn_prefill_backend=triton"]
)
def test_keys_of_its_wheel_are_known(file: str, key: str) -> None:
    """AReaL 1.0.4 as it was released has some that its repository of the day had not."""
    config_of(load_expr_config(["--config", file, key], Mine)[0])


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("gconfig.max_new_token=4", "gconfig.max_new_tokens"),
        ("max_turn=4", "max_turn"),
        ("judge.strikt=true", "judge.strict"),
        ("max_turns=many", "max_turns='many'"),
        ("gconfig.n_samples=many", "many"),
    ],
)
def test_what_nobody_has_is_said_before_anything_is_loaded(file: str, override: str, said: str) -> None:
    """A key that is neither AReaL's nor the class's nor of Ludus, or a value that cannot be."""
    with pytest.raises(ConfigError) as raised:
        load_expr_config(["--config", file, override], Mine)
    assert said in str(raised.value)


def test_a_configuration_made_in_python(file: str) -> None:
    """What is given counts, also where it is AReaL's own value; so does what is changed afterwards."""
    actor = PPOActorConfig(path="some-model", optimizer=OptimizerConfig(lr=1e-3))
    config = GRPOConfig("sums", "first", actor=actor, gconfig=GenerationHyperparameters(n_samples=3))
    config.rollout = InferenceEngineConfig()
    config.rollout.max_head_offpolicyness = 4
    config.gconfig = config.gconfig.new(max_new_tokens=12)
    for same in (config, copy.deepcopy(config), pickle.loads(pickle.dumps(config)), replace(config, seed=2)):
        ours = config_of(same)
        assert (ours.trainer.optimizer.lr, ours.gconfig.n_samples, ours.gconfig.max_new_tokens) == (0.001, 3, 12)
        assert ours.rollout.max_head_offpolicyness == 4 and ours.name == "sums-first"


def test_what_a_request_to_openais_api_lacks_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """Greedy sampling is temperature 0 there; nothing that was given is dropped without a word."""
    asked = GenerationHyperparameters(max_new_tokens=8, top_k=5, greedy=True, temperature=0.7)
    for _ in range(2):
        assert asked.to_openai_args_dict() == {"max_completion_tokens": 8, "n": 1, "temperature": 0.0}
    assert asked.to_openai_args_dict(["temperature"]) == {"max_completion_tokens": 8, "n": 1}
    assert GenerationHyperparameters().to_openai_args_dict() == {"n": 1}
    (said,) = caplog.messages
    assert said.startswith("top_k=5 is not sent with requests to OpenAI's API")


def test_what_becomes_of_the_keys_is_said_once(file: str, caplog: pytest.LogCaptureFixture) -> None:
    """Left out and changed with their reasons, the others by name; a section of which nothing is needed as a whole."""
    given = ["--config", file, "rollout.queue_size=4", "vllm.seed=3", "vllm.enforce_eager=true"]
    given.append("actor.recompute_logprob=true")
    config, _ = load_expr_config(given, Mine)
    with caplog.at_level(logging.WARNING, logger="ludus.compat.areal.experiment"):
        PPOTrainer(config, train_dataset=[{"x": 1}])
    (record,) = caplog.records
    said = record.getMessage()
    assert "left out: rollout.queue_size (there is no such queue)" in said
    assert "changed: actor.recompute_logprob (algorithm.correction: ratios are to the policy before the batch)" in said
    assert "not needed: " in said and "vllm.*" in said and "rollout.backend" in said
    assert "train_dataset.path" not in said and "max_turns" not in said


def test_a_script_that_recovers_goes_on(file: str) -> None:
    """`recover.mode` of AReaL says it; a run that has not begun begins."""
    modes: dict[str, Any] = {}
    for mode in ("disabled", "off", "on", "auto"):
        config, _ = load_expr_config(["--config", file, f"recover.mode={mode}"], Mine)
        modes[mode] = PPOTrainer(config)._resume
    assert modes == {"disabled": False, "off": False, "on": True, "auto": True}


def test_a_trial_that_was_begun_is_named_with_areals_keys(file: str, tmp_path: Path) -> None:
    config, _ = load_expr_config(["--config", file, f"cluster.fileroot={tmp_path}"], Mine)
    trainer = PPOTrainer(config, train_dataset=[{"x": 1}])
    RunStore.create(trainer.config.run_root, trainer.config.name, "").close()
    with pytest.raises(UserError, match=r"continue it with recover\.mode=auto, or choose another trial_name"):
        trainer.train("ludus.compat.areal.workflow.openai.math_agent:MathAgent")


def test_what_happens_once_an_epoch_is_counted_in_steps(file: str) -> None:
    """With rows that are given in Python: evaluations, checkpoints, the share of a warm-up. As in AReaL, what is left
    of the rows is no step."""
    given = ["evaluator.freq_epochs=1", "recover.freq_epochs=2", "actor.optimizer.warmup_steps_proportion=0.1"]
    config, _ = load_expr_config(["--config", file, *given], Mine)
    rows = [{"x": 1}] * 47  # five batches of 8, for 7 epochs
    ours = PPOTrainer(config, rows, rows).config
    assert (ours.eval.every_steps, ours.eval.after, ours.checkpoint.every_steps) == (5, True, 10)
    assert ours.trainer.optimizer.warmup_steps == 3
    config, _ = load_expr_config(["--config", file, *given, "saver.freq_steps=3", "evaluator.freq_steps=4"], Mine)
    ours = PPOTrainer(config, rows, rows).config
    assert (ours.eval.every_steps, ours.checkpoint.every_steps) == (4, 3)
    unknown = PPOTrainer(config, "rows.jsonl", "rows.jsonl").config
    assert unknown.trainer.optimizer.warmup_steps == 0


def test_without_held_out_rows_nothing_is_evaluated(file: str, caplog: pytest.LogCaptureFixture) -> None:
    """Though the file says when: as AReaL's examples without a `valid_dataset` have it."""
    config, _ = load_expr_config(["--config", file, "evaluator.freq_epochs=1"], Mine)
    assert not PPOTrainer(config, train_dataset=[{"x": 1}], valid_dataset=None).config.eval.is_asked
    assert "evaluator plays nothing: there is no valid_dataset" in caplog.text
    assert PPOTrainer(config, [{"x": 1}], [{"x": 2}]).config.eval.after
