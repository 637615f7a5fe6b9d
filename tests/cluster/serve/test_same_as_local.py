"""A loop that is played against a server gives the numbers that it gives in one process, to the last bit."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import ludus
from ludus.cluster.address import ListenAddress
from ludus.cluster.serve.server import running
from ludus.cluster.serve.store import JobStore
from ludus.compat import art
from ludus.compat.art.workshop import BackendJobRunner

SMALL: dict[str, Any] = {
    "model": {"dtype": "float32", "lora": {"rank": 4, "alpha": 8.0}},
    "engine": {"kv_bytes": 2**22},
    "trainer": {"optimizer": {"lr": 1e-2}},
    "gconfig": {"max_new_tokens": 8},
}
KEY = "a-key-that-is-long-enough"


async def rollout(model: Any, question: str) -> art.Trajectory:
    client = model.openai_client()
    trajectory = art.Trajectory(messages_and_choices=[{"role": "user", "content": question}])
    for turn in range(2):
        if turn:
            trajectory.messages_and_choices.append({"role": "user", "content": "Again."})
        completion = await client.chat.completions.create(
            model=model.get_inference_name(), messages=trajectory.messages()
        )
        trajectory.messages_and_choices.append(completion.choices[0])
    trajectory.reward = -float(sum(len(each.message.content or "") for each in trajectory.choices()))
    return trajectory


async def play(backend: Any, base_model: Path, folder: Path) -> list[Any]:
    """What was said and what training came to, in two steps and a fork."""
    found: list[Any] = []
    model: Any = art.TrainableModel(name="agent", project="p", base_model=str(base_model), base_path=str(folder))
    await model.register(backend)
    for _ in range(2):
        groups = await art.gather_trajectory_groups(
            (art.TrajectoryGroup(rollout(model, f"Guess {g}.") for _ in range(3)) for g in range(2)), pbar_desc=None
        )
        found += [message for group in groups for each in group for message in each.messages()]
        result = await model.train(groups)
        found.append({name: value for name, value in result.metrics.items() if _is_a_number_of_the_step(name)})
    outside = model.openai_client()
    said = await outside.chat.completions.create(model="default", messages=[{"role": "user", "content": "Last."}])
    found.append(said.choices[0].message.content)
    other: Any = art.TrainableModel(name="other", project="p", base_model=str(base_model), base_path=str(folder))
    found.append(await backend.fork(other, "agent", not_after_step=1))
    await other.register(backend)
    found.append(await other.get_step())
    lesson = art.Trajectory(
        messages_and_choices=[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "7"}]
    )
    found.append((await other.train_sft([lesson] * 4)).metrics["train/loss"])
    return found


def _is_a_number_of_the_step(name: str) -> bool:
    """Not of the machine."""
    return not name.startswith(("time/", "memory/")) and not name.endswith("_s")


@pytest.mark.timeout(300)  # torch is imported, and two backends train
def test_a_server_changes_no_number(tiny_model_folder: Path, tmp_path: Path) -> None:
    """Messages, losses, ledgers, a fork, supervised steps."""

    async def here() -> list[Any]:
        async with art.LocalBackend(path=tmp_path / "here", config=ludus.Config(**SMALL)) as backend:
            return await play(backend, tiny_model_folder, tmp_path / "here")

    async def there() -> list[Any]:
        backend = art.LocalBackend(path=tmp_path / "there", config=ludus.Config(**SMALL))
        with JobStore(tmp_path / "there") as store:
            async with (
                backend,
                running(store, backend, BackendJobRunner(backend), ListenAddress("127.0.0.1", 0, KEY)) as server,
            ):
                return await asyncio.to_thread(asyncio.run, laptop(server.url))

    async def laptop(url: str) -> list[Any]:
        async with art.ServerBackend(url, KEY) as backend:
            return await play(backend, tiny_model_folder, tmp_path / "laptop")

    expected, found = asyncio.run(here()), asyncio.run(there())
    assert found == expected
