"""Online training: another process plays through the openai SDK, and the trainer takes its steps."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ludus
from ludus.config import Config, check_training
from ludus.errors import ConfigError
from ludus.runs.store import RunStore

OUTSIDE = """
import sys
import httpx, openai
url, admin_key = sys.argv[1:]
admin = httpx.Client(base_url=url, headers={"authorization": f"Bearer {admin_key}"}, timeout=60)
while True:
    for number in range(4):
        about = {"group_id": None if number % 2 else "pair", "metadata": {"n": number}}
        try:
            opened = admin.post("/sessions", json=about).json()
            client = openai.OpenAI(base_url=opened["base_url"], api_key="DUMMY", max_retries=0)
            messages = [{"role": "user", "content": "Guess."}]
            answer = client.chat.completions.create(model="default", messages=messages, max_tokens=6)
            text = answer.choices[0].message.content or ""
            reward = {"reward": sum(letter in "aeiou" for letter in text) / 6, "completion_id": answer.id}
            own = httpx.Client(base_url=url, headers={"x-api-key": opened["key"]}, timeout=60)
            own.post(f"/sessions/{opened['id']}/rewards", json=reward).raise_for_status()
            own.post(f"/sessions/{opened['id']}/end", json={"metrics": {"success": 1.0}}).raise_for_status()
        except (openai.APIError, httpx.HTTPError):
            sys.exit()  # the run has ended
"""


def make_config(model: Path, root: Path, **changes: Any) -> Config:
    values: dict[str, Any] = {
        "run_root": str(root),
        "model": {"path": str(model), "dtype": "float32"},
        "engine": {"kv_bytes": 2**22},
        "gconfig": {"n_samples": 2},
        "train_dataset": {"batch_size": 2},
        "rollout": {"agent": {"mode": "online", "port": 0}, "max_head_offpolicyness": 1},
        "total_train_steps": 2,
    }
    return Config(**{**values, **changes})


def test_sessions_of_another_process_are_trained_on(tiny_model_folder: Path, tmp_path: Path) -> None:
    """Two steps of sessions that arrive: the weights change, every token is accounted for, the episodes are there."""
    outside: list[subprocess.Popen[bytes]] = []

    def begin(url: str, key: str) -> None:
        outside.append(subprocess.Popen([sys.executable, "-c", OUTSIDE, url, key]))

    summary = ludus.Trainer(make_config(tiny_model_folder, tmp_path)).train(on_gateway=begin)
    (process,) = outside
    process.wait()
    assert summary.steps == 2 and summary.ledger.trained > 0
    summary.ledger.check()
    with RunStore.open(tmp_path / "run") as run:
        episodes = list(run.episodes())
        assert sum(episode.session.num_sampled_tokens for episode in episodes) == summary.ledger.sampled
        assert {"pair"} < {episode.group_id for episode in episodes}
        assert [dict(metrics)["rollout/success"] for _, metrics in run.metrics()] == [1.0, 1.0]


def test_keys_of_played_agents_do_not_act(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What only acts where Ludus plays the agent itself is named in one warning, and is as if it were not there."""
    plain = make_config(tmp_path, tmp_path)
    changed = {
        "workflow": "agent.py:Agent",
        "train_dataset": {"path": "rows.jsonl", "batch_size": 2},
        "eval": {"after": True},
    }
    assert check_training(make_config(tmp_path, tmp_path, **changed)) == plain == check_training(plain)
    why = "with rollout.agent.mode=online the sessions of others are trained on, as they arrive"
    assert caplog.messages == [f"these keys do not act: workflow, train_dataset.path, eval ({why})"]
    with pytest.raises(ConfigError, match="no end: set total_train_steps or total_train_seconds"):
        check_training(make_config(tmp_path, tmp_path, total_train_steps=None, total_train_epochs=1))


def test_somebody_must_know_the_key(tmp_path: Path) -> None:
    """Without a key and without anybody who is told one, no session could ever be opened."""
    with pytest.raises(ConfigError, match="nobody would know the admin key"):
        ludus.Trainer(make_config(tmp_path, tmp_path)).train()
