"""A run's training once more from its record: equal bits with its settings, offline training with others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ludus.api.replay import Replayed, replay
from ludus.api.trainer import Trainer
from ludus.config import Config, load_config
from ludus.errors import ConfigError, UserError
from ludus.runs.store import RunStore

ROWS = [{"question": f"What do you know about {number}?"} for number in range(6)]


async def letters(data: dict[str, Any], *, base_url: str, http_client: Any) -> float:
    """The share of different letters in an answer; one answer in some fails."""
    body = {"messages": [{"role": "user", "content": data["question"]}], "max_tokens": 6}
    answer = (await http_client.post(base_url + "/chat/completions", json=body)).json()
    text = answer["choices"][0]["message"]["content"] or ""
    if "e" in text:
        raise ValueError("an answer that fails")
    return len(set(text)) / 6


@pytest.fixture
def trained(tiny_model_folder: Path, tmp_path: Path) -> Any:
    """Trains a run of three steps, and returns its folder."""

    def train(name: str = "played", **changes: Any) -> Path:
        values: dict[str, Any] = {
            "name": name,
            "run_root": str(tmp_path),
            "seed": 3,
            "model": {"path": str(tiny_model_folder)},
            "engine": {"kv_bytes": 2**22},
            "gconfig": {"n_samples": 3},
            "train_dataset": {"batch_size": 2},
            "trainer": {"optimizer": {"lr": 1e-3}, "row_tokens": 64},
            "checkpoint": {"every_steps": 1, "keep": 3},
            "total_train_steps": 3,
        }
        Trainer(Config(**{**values, **changes}), ROWS).train(letters)
        return tmp_path / name

    return train


def again(folder: Path, *overrides: str, from_step: int = 0) -> Replayed:
    return replay(folder, overrides, load=lambda path, keys: load_config(path, list(keys)), from_step=from_step)


def metrics_of(folder: Path, names: Sequence[str]) -> list[list[float]]:
    with RunStore.open(folder) as store:
        return [[metrics[name] for name in names if name in metrics] for _, metrics in store.metrics()]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"rollout": {"max_head_offpolicyness": 1, "oversample": 0.5}},
        {"algorithm": {"name": "ppo", "minibatches": 2}},
        {"algorithm": {"name": "remax", "kl": {"beta": 0.1}}, "model": {"lora": {"rank": 2}}},
        {"rollout": {"replay": {"share": 0.5, "size": 4}}},
    ],
    ids=["synchronous", "ahead", "critic", "greedy-adapter", "replayed-groups"],
)
def test_the_training_comes_out_the_same(trained: Any, changes: dict[str, Any], tiny_model_folder: Path) -> None:
    """Masters and moments after the last step and the model, bit for bit; the ledger of each step, its discarded
    members among it; and nothing is sampled."""
    if "model" in changes:
        changes = {**changes, "model": {**changes["model"], "path": str(tiny_model_folder)}}
    played = trained(**changes)
    replayed = again(played)
    assert replayed.weights_equal is True and not replayed.changed
    folder = played.with_name("played-replay")
    ledger = ("ledger/sampled", "ledger/trained", "train/loss", "train/grad_norm", "rollout/discarded_episodes")
    assert metrics_of(folder, ledger) == metrics_of(played, ledger)
    with RunStore.open(folder) as store, RunStore.open(played) as record:
        assert store.num_episodes == 0 and store.credit() == record.credit()


def test_it_goes_on_from_a_checkpoint(trained: Any) -> None:
    """The last steps alone, from the state that the run saved; twice, in folders of their own."""
    played = trained()
    for name in ("played-replay", "played-replay-2"):
        replayed = again(played, from_step=2)
        assert replayed.weights_equal is True and replayed.summary.run.endswith(name)
        assert len(metrics_of(Path(replayed.summary.run), ["train/loss"])) == 1
    with pytest.raises(UserError, match="no checkpoint of step 9 to go on from; it has: 1, 2, 3"):
        again(played, from_step=9)


def test_other_settings_are_offline_training(trained: Any) -> None:
    """What was changed is said; tokens are weighed by how likely the weights of now find them, or it is refused."""
    played = trained()
    replayed = again(played, "algorithm.name=gspo", "trainer.optimizer.lr=1e-2", "name=other")
    assert any(each.startswith("trainer.optimizer.lr: 0.001 → 0.01") for each in replayed.changed)
    assert replayed.weights_equal is False
    ratios = metrics_of(played.with_name("other"), ["train/logprob_gap_max"])
    assert ratios[0][0] < 0.2 < ratios[2][0]  # the first batch is its own, the last one another policy's
    with pytest.raises(ConfigError, match=r"tokens of other policies, and algorithm.correction=none"):
        again(played, "algorithm.correction=none", "name=refused")
    with pytest.raises(ConfigError, match=r"gconfig.temperature cannot act in a replay"):
        again(played, "gconfig.temperature=0.5")


def test_a_teacher_judges_the_policy_of_now(trained: Any, tiny_model_folder: Path) -> None:
    """The first weights teach. Where hardly a step is taken they are at no distance from the policy, whatever the later
    weights of the run, which sampled, were."""
    played = trained(
        model={"path": str(tiny_model_folder), "dtype": "float32"},
        algorithm={"distillation": {"weight": 0.1}},
        teacher={"kind": "policy", "weights": "first"},
    )
    again(played, "trainer.optimizer.lr=1e-12", "name=still")
    (*_, moved), (*_, still) = (metrics_of(folder, ["teacher/kl"]) for folder in (played, played.with_name("still")))
    assert abs(still[0]) < 1e-5 < 1e-3 < abs(moved[0])


def test_what_the_record_has_not_is_named(trained: Any) -> None:
    """A run that went on with other settings in the middle, and one whose record lost what a step was given."""
    played = trained(total_train_steps=2)
    config = load_config(played / "config.yaml", ["trainer.optimizer.lr=1e-4", "total_train_steps=3"])
    Trainer(config, ROWS).train(letters, resume=True)
    with pytest.raises(
        UserError, match=r"other settings until step 2 \(trainer.optimizer.lr; config.until-000002.yaml"
    ):
        again(played)
    assert again(played, from_step=2).weights_equal is True
    with RunStore.open(played) as store, store._transaction("lose a batch") as db:
        db.execute("UPDATE batches SET record = '{}' WHERE step = 3")
    with pytest.raises(UserError, match="does not say which episodes step 3 was given"):
        again(played, from_step=2)
