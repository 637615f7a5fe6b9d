"""The workflow family through the trainer: agents of evaluations, refused groups, processes, import strings."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import openai
import pytest

import ludus
from ludus.compat.areal.rollout import RolloutWorkflow
from ludus.errors import ConfigError, UserError
from ludus.runs.store import RunStore

ROWS = [{"question": f"Guess. It is higher than {bound}."} for bound in range(5)]


def make_config(model: Path, root: Path, /, **changes: Any) -> ludus.Config:
    values: dict[str, Any] = {
        "name": "tiny",
        "run_root": str(root),
        "model": {"path": str(model), "dtype": "float32"},
        "engine": {"kv_bytes": 2**22},
        "gconfig": {"n_samples": 3, "max_new_tokens": 6},
        "train_dataset": {"batch_size": 2},
        "total_train_steps": 1,
    }
    return ludus.Config(**{**values, **changes})


class Talker:
    """Says which agent it is in its metrics; the reward is the share of vowels."""

    def __init__(self, name: str = "train") -> None:
        self.name = name

    async def run(self, data: dict[str, Any], *, base_url: str, api_key: str, http_client: Any) -> Any:
        client = openai.AsyncOpenAI(base_url=base_url, api_key=api_key, http_client=http_client, max_retries=0)
        messages: list[Any] = [{"role": "user", "content": data["question"]}]
        completion = await client.chat.completions.create(model="default", messages=messages)
        text = completion.choices[0].message.content or ""
        return sum(letter in "aeiou" for letter in text) / 6, {f"is_{self.name}": 1}


def test_evaluations_have_an_agent_of_their_own(tiny_model_folder: Path, tmp_path: Path) -> None:
    """eval_workflow plays the held-out rows, workflow the others."""
    config = make_config(tiny_model_folder, tmp_path, eval={"after": True})
    ludus.Trainer(config, ROWS, ROWS[:2]).train(
        Talker, eval_workflow=Talker, eval_workflow_kwargs={"name": "evaluation"}
    )
    with RunStore.open(tmp_path / "tiny") as store:
        trained, evaluated = store.episodes(is_eval=False), store.episodes(is_eval=True)
        assert {name for episode in trained for name in episode.metrics} == {"is_train"}
        assert {name for episode in evaluated for name in episode.metrics} == {"is_evaluation"}


def test_the_configuration_names_them_too(tiny_model_folder: Path, tmp_path: Path) -> None:
    """Import strings of a file; `evaluate` takes the agent of evaluations."""
    (tmp_path / "two_agents.py").write_text(
        "class One:\n"
        "    def __init__(self, reward):\n"
        "        self.reward = reward\n"
        "    async def run(self, data, *, base_url, http_client, **_):\n"
        "        body = {'messages': [{'role': 'user', 'content': 'x'}], 'max_tokens': 2}\n"
        "        await http_client.post(base_url + '/chat/completions', json=body)\n"
        "        return self.reward\n"
    )
    agent = f"{tmp_path}/two_agents.py:One"
    config = make_config(
        tiny_model_folder,
        tmp_path,
        workflow=agent,
        workflow_kwargs={"reward": 1.0},
        eval_workflow=agent,
        eval_workflow_kwargs={"reward": 0.25},
        eval={"after": True},
    )
    assert ludus.Trainer(config, ROWS, ROWS[:2]).evaluate().metrics["eval/reward"] == 0.25


def test_groups_that_are_not_accepted_are_replaced(tiny_model_folder: Path, tmp_path: Path) -> None:
    """The function sees the rewards and rows of a group; what it refuses is played, counted and not trained."""
    seen: list[tuple[int, ...]] = []

    def accept(group: Mapping[str, Any]) -> bool:
        rewards, ids = group["rewards"], group["input_ids"]
        assert group["attention_mask"].shape == ids.shape == group["loss_mask"].shape == group["logprobs"].shape
        assert len(group["episodes"]) == len(rewards) == 3
        seen.append(tuple(ids.shape))
        return len(seen) != 1 and bool(rewards.float().mean() >= 0)

    config = make_config(tiny_model_folder, tmp_path)
    summary = ludus.Trainer(config, ROWS).train(Talker, should_accept_fn=accept)
    assert len(seen) == 3
    assert summary.ledger.masked["not_accepted"] > 0
    assert summary.metrics["rollout/discarded_not_accepted_episodes"] == 3.0


def test_a_filter_that_raises_stops_the_run_by_name(tiny_model_folder: Path, tmp_path: Path) -> None:
    """It is no episode's fault."""
    config = make_config(tiny_model_folder, tmp_path)
    with pytest.raises(UserError, match=r"should_accept_fn raised on group .* a group has rewards, input_ids"):
        ludus.Trainer(config, ROWS).train(Talker, should_accept_fn=lambda group: group["reward"])
    with pytest.raises(UserError, match="there is no module 'no_such'"):
        ludus.Trainer(config, ROWS).train(Talker, should_accept_fn="no_such.module:accept")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"eval_workflow": Talker}, "eval_workflow cannot act: no evaluation is asked for"),
        ({"eval_workflow_kwargs": {"name": "x"}}, "eval_workflow_kwargs cannot act without eval_workflow"),
    ],
)
def test_an_agent_of_evaluations_that_cannot_act_is_refused(
    tiny_model_folder: Path, tmp_path: Path, options: Mapping[str, Any], words: str
) -> None:
    """Before anything runs."""
    with pytest.raises(ConfigError, match=words):
        ludus.Trainer(make_config(tiny_model_folder, tmp_path), ROWS).train(Talker, **options)


class Tokens(RolloutWorkflow):
    """Answers by token ids, returned as tensors."""

    async def arun_episode(self, engine: Any, data: Any) -> Any:
        import torch

        from ludus.compat.areal.generation import ModelRequest

        answer = await engine.agenerate(ModelRequest(input_ids=list(range(5, 12))))
        ids = answer.input_tokens + answer.output_tokens
        return {
            "input_ids": torch.tensor([ids]),
            "attention_mask": torch.ones(1, len(ids), dtype=torch.bool),
            "loss_mask": torch.tensor([[0] * answer.input_len + [1] * answer.output_len]),
            "logprobs": torch.tensor([[0.0] * answer.input_len + answer.output_logprobs]),
            "versions": torch.tensor([[-1] * answer.input_len + answer.output_versions]),
            "rewards": torch.tensor([float(answer.output_tokens[0] % 7)]),
        }


def test_rows_of_torch_train(tiny_model_folder: Path, tmp_path: Path) -> None:
    """A rollout workflow as its users write it: every token it marks is trained."""
    summary = ludus.Trainer(make_config(tiny_model_folder, tmp_path), ROWS).train(Tokens)
    assert summary.ledger.trained == summary.ledger.sampled > 0
    assert summary.metrics["train/logprob_gap_max"] < 1e-4


def test_an_agent_in_processes_trains(tiny_model_folder: Path, tmp_path: Path) -> None:
    """rollout.agent.mode=subproc: the same agent, the same run; its module is not this one's."""
    agents = {"mode": "subproc", "subproc_max_workers": 2}
    config = make_config(tiny_model_folder, tmp_path, rollout={"agent": agents})

    class Here(Talker):
        async def run(self, data: dict[str, Any], **injected: Any) -> Any:
            self.name = f"argv{len(sys.argv)}"
            return await super().run(data, **injected)

    summary = ludus.Trainer(config, ROWS).train(Here)
    assert summary.steps == 1 and summary.ledger.trained > 0
    assert summary.metrics["rollout/is_argv2"] == 1.0


def test_both_styles_train_the_same(tiny_model_folder: Path, tmp_path: Path) -> None:
    """export_style changes how rows are cut, and no weight beyond rounding."""
    from safetensors.torch import load_file

    weights = []
    for style in ("individual", "concat"):
        agents = {"export_style": style, "turn_discount": 0.9}
        config = make_config(tiny_model_folder, tmp_path, name=style, rollout={"agent": agents})
        ludus.Trainer(config, ROWS).train(Chatter)
        weights.append(load_file(tmp_path / style / "model" / "model.safetensors"))
    first, second = weights
    assert all(first[name].sub(second[name]).abs().max() < 1e-5 for name in first)


class Chatter:
    """Three turns, rewarded one by one; the names of completions are chosen by the agent."""

    async def run(self, data: dict[str, Any], *, base_url: str, api_key: str, http_client: Any) -> Any:
        client = openai.AsyncOpenAI(base_url=base_url, api_key=api_key, http_client=http_client, max_retries=0)
        messages: list[Any] = [{"role": "user", "content": data["question"]}]
        rewards = {}
        for _ in range(3):
            completion = await client.chat.completions.create(model="default", messages=messages)
            text = completion.choices[0].message.content or ""
            rewards[completion.id] = float(len(text) % 3)
            messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "higher"}]
        return rewards
