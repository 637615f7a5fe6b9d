"""Reward models: trained on pairs, read by transformers, asked by agents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification

import ludus
from ludus.api.play import play
from ludus.config import Config
from ludus.models.load import copy_companions
from ludus.text.chat import ChatText
from ludus.types import Message

ASK = [{"role": "user", "content": "Which colour?"}]


def say(text: str) -> list[dict[str, str]]:
    return [*ASK, {"role": "assistant", "content": text}]


ROWS = [{"prompt": ASK, "chosen": say("blue")[1:], "rejected": say("red, of course")[1:]}]


def make_config(model: Path, **changes: Any) -> Config:
    values: dict[str, Any] = {
        "model": {"path": str(model), "dtype": "float32"},
        "trainer": {"optimizer": {"lr": 1e-3}},
        "engine": {"kv_bytes": 2**22},
    }
    return Config(**values, **changes)


@pytest.fixture(scope="module")
def judge(tiny_model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Taught one pair in twenty steps."""
    folder = tmp_path_factory.mktemp("judge")
    seen: list[dict[str, float]] = []
    how = ludus.RewardSettings(epochs=20, center_rewards_coefficient=0.01)
    steps = ludus.train_reward_model(
        make_config(tiny_model_folder), ROWS, folder, how, on_step=lambda _, metrics: seen.append(dict(metrics))
    )
    assert steps == 20
    # an untrained one says 0 of both: -log sigmoid(0)
    assert seen[0]["train/loss"] == pytest.approx(0.6931, abs=1e-3) and seen[-1]["train/loss"] < 0.3
    assert seen[-1]["train/accuracy"] == 1.0
    return folder


def ids_of(folder: Path, text: str) -> list[int]:
    chat = ChatText.load(folder)
    messages = (Message("user", ASK[0]["content"]), Message("assistant", text))
    ids = chat.tokenizer.encode(chat.template.render(messages, (), generation_prompt=False))
    last = max(at for at, token in enumerate(ids) if token in chat.tokenizer.stop_ids)
    return list(ids[: last + 1])


def test_plain_transformers_says_the_same(judge: Path) -> None:
    """AutoModelForSequenceClassification of one label gives the numbers of `RewardModel`."""
    scores = ludus.RewardModel(judge).scores([say("blue"), say("red, of course"), say("green")])
    assert scores[0] > scores[1]
    model, report = AutoModelForSequenceClassification.from_pretrained(
        judge, num_labels=1, dtype=torch.float32, output_loading_info=True
    )
    model.requires_grad_(False)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    for score, text in zip(scores, ("blue", "red, of course", "green"), strict=True):
        assert float(model(torch.tensor([ids_of(judge, text)])).logits) == pytest.approx(score, abs=1e-4)


def test_a_model_of_transformers_is_read(tiny_model_folder: Path, tmp_path: Path) -> None:
    """What transformers saved scores here as it does there."""
    config = AutoConfig.from_pretrained(tiny_model_folder, num_labels=1, pad_token_id=0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForSequenceClassification.from_config(config).float()
    model.eval().requires_grad_(False).save_pretrained(tmp_path)
    copy_companions(tiny_model_folder, tmp_path)
    (score,) = ludus.RewardModel(tmp_path).scores([say("blue")])
    assert float(model(torch.tensor([ids_of(tmp_path, "blue")])).logits) == pytest.approx(score, abs=1e-4)


def test_an_agent_is_rewarded_by_it(judge: Path, tiny_model_folder: Path) -> None:
    """The agent scores its own conversation and returns the number."""
    model = ludus.RewardModel(judge)

    async def agent(data: dict[str, Any], *, base_url: str, http_client: Any) -> float:
        answer = await http_client.post(f"{base_url}/chat/completions", json={"messages": ASK, "max_tokens": 4})
        return await model.score([*ASK, answer.json()["choices"][0]["message"]])

    config = make_config(tiny_model_folder, gconfig={"n_samples": 1, "max_new_tokens": 4})
    (episode,) = play(agent, [{}], config=config)
    reply = episode.session.turns[0].reply.content
    assert episode.reward == pytest.approx(model.scores([say(reply or "")])[0], abs=1e-5)


def test_what_is_no_reward_model_is_refused(tiny_model_folder: Path, judge: Path, tmp_path: Path) -> None:
    """A model without such a number; a conversation without an answer; adapters."""
    with pytest.raises(ludus.UserError, match=r"has no score\.weight"):
        ludus.RewardModel(tiny_model_folder)
    model = ludus.RewardModel(judge)
    assert model.scores([]) == []
    with pytest.raises(ludus.UserError, match="conversation 0 has no message of the assistant"):
        model.scores([ASK])
    config = Config(model={"path": str(tiny_model_folder), "lora": {"rank": 2}})
    with pytest.raises(ludus.ConfigError, match=r"leave model\.lora"):
        ludus.train_reward_model(config, ROWS, tmp_path)
