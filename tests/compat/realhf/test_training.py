"""A tiny model trained inside queue agents: bundles as groups, conversations, and what was left out or rejected."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import ludus
from ludus.compat.realhf import (
    Agent,
    EnvironmentService,
    GenerationHyperparameters,
    MathMultiTurnAgent,
    TrajectoryBuilder,
)
from ludus.runs.store import RunStore

ROWS = [{"question": f"Guess. It is higher than {bound}."} for bound in range(5)]


class Vowels(EnvironmentService):
    async def reset(self, seed: Any = None, options: Any = None) -> tuple[None, dict[str, Any]]:
        return None, {}

    async def step(self, action: Any) -> Any:
        _, answers = action
        return None, [sum(letter in "aeiou" for letter in answer) / 8 for answer in answers], True, False, {}


class Bundles(Agent):
    """Four answers at once, the last two tokens of the last not to be trained; a row is rejected."""

    async def collect_trajectory(self, prompt: Any, env: Any, obs_queue: Any, act_queue: Any) -> Any:
        row = prompt.metadata["row"][0]
        await obs_queue.put((prompt.ids[0], prompt.data["packed_prompts"].tolist(), GenerationHyperparameters(n=4)))
        act = await act_queue.get()
        if "than 2" in row["question"]:
            return []
        trajectory = TrajectoryBuilder(prompt)
        trajectory.add(act)
        rewards = [ids[0] % 7 / 7 for ids in act.output_ids]
        sample = trajectory.build(rewards, {"success": [1.0]})
        sample.data["prompt_mask"][-2:] = True
        return [sample]


def config(model: Any, root: Any, **changes: Any) -> ludus.Config:
    values: dict[str, Any] = {
        "name": "tiny",
        "run_root": str(root),
        "model": {"path": str(model), "dtype": "float32"},
        "engine": {"kv_bytes": 2**22},
        "gconfig": {"n_samples": 2, "max_new_tokens": 6},
        "train_dataset": {"batch_size": 2, "shuffle": False},
        "total_train_steps": 2,
    }
    return ludus.Config(**{**values, **changes})


def test_a_bundle_is_a_group(tiny_models: Any, tmp_path: Any) -> None:
    """One episode a group, whose answers are compared with one another; what its mask covers is left out."""
    settings = config(
        tiny_models("llama"),
        tmp_path,
        gconfig={"n_samples": 1, "max_new_tokens": 6},
        rollout={"min_members": 1},
    )
    summary = ludus.Trainer(settings, ROWS).train(Bundles)
    assert summary.steps == 2 and summary.ledger.unbalanced == 0
    assert summary.ledger.trained > 0 and summary.ledger.masked["rejected"] > 0
    assert summary.ledger.masked["left_out"] == 2 * 2 * 2  # of each group of each step
    with RunStore.open(tmp_path / "tiny") as store:
        episodes = [episode for episode in store.episodes() if episode.outcome.kind == "ok"]
    assert all(len(episode.session.turns) == 4 and episode.has_returns for episode in episodes)


def test_conversations_are_trained_turn_by_turn(tiny_models: Any, tmp_path: Any) -> None:
    """Both turns of the multi-turn mathematician, each with the return that the agent computed."""
    agent = MathMultiTurnAgent(num_turns=2, turn_level_discount=0.5)
    summary = ludus.Trainer(config(tiny_models("llama"), tmp_path), ROWS).train(agent, {"env": Vowels()})
    assert summary.steps == 2 and summary.ledger.trained > 0 and summary.ledger.masked.get("left_out", 0) == 0
