"""Models asked by name while a run trains: each answers with its own weights, or is refused with what there is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest

from ludus.agents.adapter import current_episode
from ludus.agents.langchain import ChatModel
from ludus.api.trainer import Trainer
from ludus.models.settings import LoraSettings
from ludus.runs.store import RunStore
from tests.api.test_recorded_tokens import config_of

ASK: Any = [{"role": "user", "content": "Guess."}]
ROWS = [{"question": "Guess."}]


class Remembers:
    """Of each version what it answered, and what it answers when it is asked by name under a later one."""

    def __init__(self, base: str) -> None:
        self.base = base
        self.newest: dict[int, tuple[list[tuple[str, float]], str]] = {}
        self.num_compared = 0
        self.others: set[str] = set()

    async def run(self, data: dict[str, Any], *, base_url: str, api_key: str, http_client: Any) -> Any:
        client = openai.AsyncOpenAI(base_url=base_url, api_key=api_key, http_client=http_client, max_retries=0)
        episode = current_episode()
        assert episode is not None and episode.session is not None
        version = episode.session.version

        async def ask(name: str, **options: Any) -> Any:
            asked = {"model": name, "messages": ASK, "max_tokens": 6, "temperature": 0.0, "logprobs": True, **options}
            return await client.chat.completions.create(**asked)

        async def said(name: str) -> tuple[list[tuple[str, float]], str]:
            answer = await ask(name)
            self.others |= {answer.model} - {"default"}
            choice = answer.choices[0]
            return [(each.token, each.logprob) for each in choice.logprobs.content], choice.message.content

        self.newest[version] = newest = await said("default")
        assert await said(self.base) == self.newest[0]
        assert version == 0 or newest != self.newest[0]
        for step in range(version):
            for name in (f"run@{step}", f"default@{step}"):
                assert await said(name) == self.newest[step], (version, step)
                self.num_compared += 1
            in_process = ChatModel(model=f"run@{step}", temperature=0.0, max_tokens=6)
            assert (await in_process.ainvoke("Guess.")).content == self.newest[step][1]
            assert in_process.invoke("Guess.").content == self.newest[step][1]
        for name, why in (("run@9", "step 9 was not trained yet"), ("gpt-4o", "no model here is called so")):
            with pytest.raises(openai.NotFoundError, match=f"{name}' cannot answer: {why}.*; there is default, run, "):
                await ask(name)
        own = await ask("run", temperature=1.0)
        return {own.id: len(set(own.choices[0].message.content or "")) / 10}


@pytest.mark.parametrize("lora", [None, {"rank": 4, "alpha": 8.0}])
def test_base_and_steps_answer_inside_a_training_run(tiny_model_folder: Path, tmp_path: Path, lora: Any) -> None:
    """A step asked by name gives that step's logprobs, the base those of before the first, in one rollout with the
    newest; none of them is in a record, and nothing of theirs is trained."""
    config = config_of(
        tiny_model_folder,
        tmp_path,
        total_train_steps=3,
        rollout={"max_concurrent_rollouts": 1},
        checkpoint={"every_steps": 1, "keep": 10},
        train_dataset={"batch_size": 1},
        trainer={"optimizer": {"lr": 5e-2}},
    )
    model = config.model.model_copy(update={"dtype": "bfloat16", "lora": lora and LoraSettings(**lora)})
    config = config.model_copy(update={"model": model})
    agent = Remembers(str(tiny_model_folder))
    Trainer(config, ROWS).train(agent)
    assert sorted(agent.newest) == [0, 1, 2] and agent.num_compared == 2 * 2 * (1 + 2)
    assert agent.newest[0] != agent.newest[1] != agent.newest[2]
    assert agent.others == {"run@0", "run@1"}
    with RunStore.look(tmp_path / "run") as store:
        episodes = [store.episode_at(num) for num in range(1, store.num_episodes + 1)]
        metrics = dict(store.metrics())
    assert {episode.outcome.kind for episode in episodes} == {"ok"}, episodes[0].outcome
    assert [len(episode.session.turns) for episode in episodes] == [2] * 6
    sampled = sum(episode.session.num_sampled_tokens for episode in episodes)
    assert sum(each["ledger/sampled"] for each in metrics.values()) == sampled > 0
