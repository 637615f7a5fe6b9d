"""Scripts that train with W&B's service train here."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

import ludus.compat.art as art
from ludus.compat.art.serverless.backend import ServerlessBackend

ASK: Any = [{"role": "user", "content": "Guess."}]


def test_a_script_of_the_service_trains_here(
    tiny_model_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sentence says where, and what is not read; a step is as with a backend of this process."""
    monkeypatch.chdir(tmp_path)
    small = {"model": {"dtype": "float32"}, "engine": {"kv_bytes": 2**22}, "gconfig": {"max_new_tokens": 8}}
    model = art.TrainableModel(name="m", project="p", base_model=str(tiny_model_folder), _internal_config=small)

    async def rollout(reward: float) -> art.Trajectory:
        answer = await model.openai_client().chat.completions.create(model=model.get_inference_name(), messages=ASK)
        return art.Trajectory(messages_and_choices=[*ASK, answer.choices[0]], reward=reward)

    async def main() -> art.TrainResult:
        with caplog.at_level(logging.WARNING):
            backend = art.ServerlessBackend(api_key="key", base_url="https://api.training.wandb.ai/v1")
        assert [record.message.partition(":")[0] for record in caplog.records] == [
            "art.serverless.backend.ServerlessBackend ignores api_key (W&B's service is not called); base_url (W&B's "
            "service is not called)",
            "ServerlessBackend",
        ]
        await model.register(backend)
        groups = await art.gather_trajectory_groups([art.TrajectoryGroup(rollout(float(n)) for n in range(2))])
        with pytest.raises(AttributeError, match=r"delete is not here: a model is a folder"):
            backend.delete  # noqa: B018  # read to be refused
        result = await backend.train(model, groups, learning_rate=1e-3, ppo=False)
        await backend.close()
        return result

    assert asyncio.run(main()).step == 1
    assert art.ServerlessBackend is ServerlessBackend and (tmp_path / "runs" / "p" / "models" / "m").is_dir()
