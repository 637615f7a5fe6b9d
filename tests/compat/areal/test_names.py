"""What users of AReaL import, and the pages they read first: one changed import line."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from openai import AsyncOpenAI, OpenAI

import ludus
from ludus.compat.areal import PPOTrainer
from ludus.compat.areal.api.cli_args import GRPOConfig, load_expr_config
from ludus.compat.areal.api.io_struct import ModelRequest
from ludus.compat.areal.api.reward_api import AsyncRewardWrapper
from ludus.compat.areal.api.workflow_api import RolloutWorkflow
from ludus.compat.areal.infra import workflow_context
from ludus.compat.areal.reward import MathVerifyWorker
from ludus.compat.areal.utils import stats_tracker
from ludus.compat.areal.utils.data import concat_padded_tensors
from ludus.compat.areal.utils.logging import getLogger
from ludus.errors import ConfigError, UserError

ROWS = [{"messages": [{"role": "user", "content": f"Guess. It is higher than {n}."}], "answer": "1"} for n in range(4)]


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("api", "RolloutWorkflow"),
        ("api.workflow_api", "AgentWorkflow"),
        ("api.cli_args", "GenerationHyperparameters"),
        ("api.cli_args", "dataclass"),
        ("api.engine_api", "InferenceEngine"),
        ("api.io_struct", "ModelResponse"),
        ("core.workflow_context", "stat_scope"),
        ("experimental.openai", "ArealOpenAI"),
        ("experimental.openai.types", "InteractionWithTokenLogpReward"),
        ("infra.workflow_context", "get_aiohttp_session"),
        ("reward", "get_math_verify_worker"),
        ("reward.gsm8k", "gsm8k_reward_fn"),
        ("trainer", "PPOTrainer"),
        ("trainer.rl_trainer", "PPOTrainer"),
        ("utils.hf_utils", "load_hf_tokenizer"),
        ("workflow.multi_turn", "MultiTurnWorkflow"),
        ("workflow.rlvr", "RLVRWorkflow"),
    ],
)
def test_names_are_where_they_are_looked_for(module: str, name: str) -> None:
    """`areal.…` becomes `ludus.compat.areal.…`."""
    assert hasattr(importlib.import_module(f"ludus.compat.areal.{module}"), name)


def compute_reward(response: Any, answer: str) -> float:
    return float(len(response.choices[0].message.content or "") % 3 == int(answer))


class MyAgent:
    """As the first page shows it."""

    async def run(self, data, **extra_kwargs):  # type: ignore[no-untyped-def]
        http_client = extra_kwargs.get("http_client")
        base_url = extra_kwargs.get("base_url") or os.getenv("OPENAI_BASE_URL")
        api_key = extra_kwargs.get("api_key") or os.getenv("OPENAI_API_KEY")
        client = AsyncOpenAI(
            base_url=base_url,
            api_key=api_key,
            http_client=http_client,
            max_retries=0,
        )
        response = await client.chat.completions.create(
            model="default",
            messages=data["messages"],
        )
        return compute_reward(response, data["answer"])


class MySyncAgent:
    """As the first page shows it, with the key given once."""

    async def run(self, data, **extra_kwargs):  # type: ignore[no-untyped-def]
        client = OpenAI(base_url=os.getenv("OPENAI_BASE_URL"), api_key="DUMMY")
        response = client.chat.completions.create(model="default", messages=data["messages"])
        client.close()
        return {response.id: compute_reward(response, data["answer"])}


class MyWorkflow(RolloutWorkflow):
    """As the second page shows it: the reward is wrapped once, other hosts are reached by shared clients."""

    def __init__(self, reward_fn):  # type: ignore[no-untyped-def]
        self.async_reward_fn = AsyncRewardWrapper(reward_fn)

    async def arun_episode(self, engine, data):  # type: ignore[no-untyped-def]
        req = ModelRequest(input_ids=[5, 6, 7])
        resp = await engine.agenerate(req)
        assert not (await workflow_context.get_httpx_client()).is_closed
        reward = await self.async_reward_fn("prompt", "completion", resp.input_tokens, resp.output_tokens, **data)
        stats_tracker.get(workflow_context.stat_scope()).scalar(reward=reward)
        ids = resp.input_tokens + resp.output_tokens
        row = {
            "input_ids": torch.tensor([ids]),
            "attention_mask": torch.ones(1, len(ids), dtype=torch.bool),
            "loss_mask": torch.tensor([[0] * resp.input_len + [1] * resp.output_len]),
            "rewards": torch.tensor([reward]),
        }
        return concat_padded_tensors([row])


def first_token_reward(prompt, completions, prompt_ids, completion_ids, **data):  # type: ignore[no-untyped-def]
    return float(completion_ids[0] % 5)


def config_file(folder: Path, model: Path, **changes: Any) -> Path:
    values = {
        "run_root": str(folder),
        "model": {"path": str(model), "dtype": "float32"},
        "engine": {"kv_bytes": 2**22},
        "gconfig": {"n_samples": 3, "max_new_tokens": 6},
        "train_dataset": {"batch_size": 2},
        "total_train_steps": 1,
        **changes,
    }
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


@pytest.mark.parametrize(
    ("workflow", "kwargs", "overrides"),
    [
        (MyAgent, {}, []),
        (MySyncAgent, {}, ["rollout.agent.mode=subproc", "rollout.agent.subproc_max_workers=2"]),
        (MyWorkflow, {"reward_fn": first_token_reward}, ["rollout.agent.turn_discount=0.9"]),
    ],
)
def test_the_pages_train(
    workflow: type, kwargs: dict[str, Any], overrides: list[str], tiny_model_folder: Path, tmp_path: Path
) -> None:
    """A script with the trainer, a configuration file and overrides; every token is accounted for."""
    path = config_file(tmp_path, tiny_model_folder)
    config, read = load_expr_config(["--config", str(path), "seed=3", *overrides], GRPOConfig)
    assert read == str(path) and config.seed == 3 and config.gconfig.n_samples == 3
    with PPOTrainer(config, train_dataset=ROWS) as trainer:
        summary = trainer.train(workflow=workflow, workflow_kwargs=kwargs)
    assert summary.steps == 1
    assert summary.ledger.sampled == summary.ledger.trained + sum(summary.ledger.masked.values())
    assert summary.metrics["rollout/discarded_episodes"] == 0.0


def test_a_script_shows_how_far_it_is(
    tiny_model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line a step on stderr; what the script prints is its own."""
    config = ludus.load_config(config_file(tmp_path, tiny_model_folder))
    PPOTrainer(config, ROWS).train(MyAgent)
    shown = capsys.readouterr()
    assert "step 1/1" in shown.err and "done: 1 steps" in shown.err
    assert shown.out == ""


def test_rows_of_different_width_are_joined() -> None:
    """Padding goes to the right, and is not attended to."""
    rows = [
        {"input_ids": torch.ones(1, n, dtype=torch.long), "attention_mask": torch.ones(1, n), "rewards": torch.ones(1)}
        for n in (2, 4)
    ]
    joined = concat_padded_tensors(rows, pad_value=9)
    assert joined["input_ids"].tolist() == [[1, 1, 9, 9], [1, 1, 1, 1]]
    assert joined["attention_mask"].sum().item() == 6
    assert joined["rewards"].shape == (2,)
    with pytest.raises(UserError, match="no rows to join"):
        concat_padded_tensors([])
    with pytest.raises(UserError, match="cannot be joined"):
        concat_padded_tensors([rows[0], {"input_ids": rows[1]["input_ids"]}])


def test_the_trainer_has_areals_arguments(tiny_model_folder: Path, tmp_path: Path) -> None:
    """In its order: the agent of evaluations is the second one; a filter may be a function."""
    seen: list[int] = []

    def accept(group: Any) -> bool:
        seen.append(len(group["rewards"]))
        return True

    config = ludus.load_config(config_file(tmp_path, tiny_model_folder, eval={"after": True}))
    summary = PPOTrainer(config, ROWS, ROWS[:1]).train(MyAgent, MyAgent, dynamic_filter_fn=accept)
    assert seen == [3, 3] and summary.reward_after is not None
    trainer = PPOTrainer(config.model_copy(update={"total_train_steps": None}), ROWS, ROWS[:1])
    with pytest.raises(UserError, match="total_epochs=0 must be at least 1"):
        trainer.train(MyAgent, total_epochs=0)
    with pytest.raises(UserError, match="was already"):  # what it was told stands in its configuration
        trainer.train(MyAgent, total_epochs=3)
    assert trainer.config.total_train_epochs == 3


def test_a_verifier_has_a_timeout_of_its_own() -> None:
    """What else AReaL's takes is refused where it says something."""
    worker = MathVerifyWorker(True, 6, timeout=20.0)
    assert worker.verify("the answer is \\boxed{4}", "4") == 1.0 and worker.verify("5", "4") == 0.0
    with pytest.raises(ConfigError, match="precision=3: answers are compared as math-verify does"):
        MathVerifyWorker(precision=3)


def test_loggers_have_levels() -> None:
    """Kinds of lines are Python's."""
    assert getLogger("areal.tests", "system", 10).level == 10 and getLogger("areal.tests").level == 10
