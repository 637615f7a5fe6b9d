"""verl's command line: Hydra's files and overrides, and the run that they come to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ludus.compat.verl.main_ppo import main, read_command_line
from ludus.errors import ConfigError, UserError
from ludus.runs.folder import read_config


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_files_are_composed_as_hydra_does(tmp_path: Path) -> None:
    """Defaults below, the file itself where `_self_` stands, the command line above; verl's own default is Ludus's."""
    write(
        tmp_path / "mine.yaml",
        "hydra: {searchpath: [x]}\ndefaults:\n- ppo_trainer\n- rollout@actor_rollout_ref.rollout: small\n- _self_\n"
        "data: {seed: 3, train_batch_size: 8, val_batch_size: '${data.train_batch_size}'}\n"
        "actor_rollout_ref: {rollout: {n: 4}}\n",
    )
    write(tmp_path / "rollout" / "small.yaml", "n: 2\ntemperature: 0.5\n")
    given = ["--config-path", str(tmp_path), "--config-name=mine", "data.train_batch_size=2", "+trainer.new=[a]"]
    assert read_command_line([*given, '++trainer.logger=["console"]', "~data.seed"]) == {
        "data": {"train_batch_size": 2, "val_batch_size": 2},
        "actor_rollout_ref": {"rollout": {"n": 4, "temperature": 0.5}},
        "trainer": {"new": ["a"], "logger": ["console"]},
    }
    assert read_command_line(["--config-name", "ppo_trainer", "data.seed=1"]) == {"data": {"seed": 1}}
    quoted = read_command_line([r"+plan.modules={layers.\{*\}: 1}", r"note='a\, b'"])
    assert quoted == {"plan": {"modules": "{layers.{*}: 1}"}, "note": r"a\, b"}


def test_what_cannot_be_composed_is_named(tmp_path: Path) -> None:
    write(tmp_path / "round.yaml", "defaults: [round]\n")
    write(tmp_path / "odd.yaml", "defaults: [3]\n")
    for arguments, error, match in (
        (["--config-name=round"], ConfigError, "go round in a circle"),
        (["--config-name=odd"], UserError, "has the entry 3, which is neither"),
        (["--config-name=none"], UserError, "none.yaml"),
        (["~data.seed"], ConfigError, "takes away a key that is not given"),
        (["data.seed"], ConfigError, "must have the form key=value"),
    ):
        with pytest.raises(error, match=match):
            read_command_line(["--config-path", str(tmp_path), *arguments])


def small(tiny_model_folder: Path, tmp_path: Path) -> list[str]:
    """Keys of a run that takes seconds."""
    rows = [{"prompt": [{"role": "user", "content": f"Guess {n}."}]} for n in range(4)]
    write(tmp_path / "rows.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    write(
        tmp_path / "score.py", "def compute_score(data_source, solution_str, **_):\n    return len(solution_str) % 3\n"
    )
    return [
        f"data.train_files={tmp_path / 'rows.jsonl'}",
        "data.train_batch_size=2",
        "data.max_response_length=6",
        f"actor_rollout_ref.model.path={tiny_model_folder}",
        "model.dtype=float32",
        "engine.kv_bytes=4194304",
        f"custom_reward_function.path={tmp_path / 'score.py'}",
        f"run_root={tmp_path / 'runs'}",
    ]


def test_a_run_of_verls_command_line(tiny_model_folder: Path, tmp_path: Path) -> None:
    """It trains, with verl's defaults, and where it is called again it goes on in its folder."""
    given = [
        *small(tiny_model_folder, tmp_path),
        "actor_rollout_ref.rollout.n=2",
        "algorithm.adv_estimator=grpo",
        "trainer.experiment_name=mine",
        "trainer.total_epochs=3",
    ]
    assert main([*given, "trainer.total_training_steps=1"]).steps == 1
    summary = main([*given, "trainer.total_training_steps=2"])
    assert summary.steps == 2 and summary.ledger.trained > 0
    optimizer = read_config(tmp_path / "runs" / "mine")["trainer"]["optimizer"]
    assert (optimizer["lr"], optimizer["weight_decay"]) == (1e-6, 0.01)
    with pytest.raises(UserError, match="already finished"):
        main([*given, "trainer.total_training_steps=2", "trainer.resume_mode=disable"])


def test_a_quickstart_trains_a_critic_too(tiny_model_folder: Path, tmp_path: Path) -> None:
    """verl's names no estimator, which is PPO there: one answer to a row, values of a model of their own."""
    given = small(tiny_model_folder, tmp_path)
    summary = main([*given, "trainer.experiment_name=ppo", "trainer.total_training_steps=1"])
    assert summary.steps == 1 and summary.ledger.trained == summary.ledger.sampled > 0
    folder = tmp_path / "runs" / "ppo"
    assert read_config(folder)["algorithm"]["advantage"]["kind"] == "gae"
    assert "critic/loss" in (folder / "metrics.jsonl").read_text()
