from __future__ import annotations

from pathlib import Path

from ludus.runs.folder import read_config, without_secrets
from ludus.runs.report import report_page
from ludus.runs.settings import TrackersSettings
from ludus.runs.store import RunStore
from ludus.runs.trackers.follower import tracked_run

CONFIG = """
name: run
model: {path: nowhere}
engine: {kind: vllm, urls: ["http://me:hunter2@10.0.0.1:8000"], api_key: sk-engine}
rollout: {agent: {api_key_env: AGENT_KEY, options: {openai_api_key: sk-agent, eos_token: "</s>"}}}
trackers: {otlp: {headers: {x-team: sk-header}}, mlflow: {tracking_uri: "https://me:hunter2@host"}}
train_dataset: {answer_key: answer}
"""
SECRETS = ("sk-engine", "sk-agent", "sk-header", "hunter2")


def test_keys_leave_the_folder_neither_in_a_report_nor_to_a_tracker(tmp_path: Path) -> None:
    """Whoever they are for; the names of columns and of variables, and all else, are what they are."""
    with RunStore.create(tmp_path, "run", CONFIG) as store:
        page = report_page(store)
        config = tracked_run("run", store.folder, TrackersSettings()).config
        known = read_config(store.folder)
    assert [secret for secret in SECRETS if secret in page or secret in str(config)] == []
    assert known["engine"]["api_key"] == "sk-engine" and config["engine"]["urls"] == ["http://me:…@10.0.0.1:8000"]
    assert config["rollout"]["agent"] == {
        "api_key_env": "AGENT_KEY",
        "options": {"openai_api_key": "…", "eos_token": "</s>"},
    }
    assert config["train_dataset"] == {"answer_key": "answer"} and "AGENT_KEY" in page


def test_what_is_no_text_is_no_secret() -> None:
    assert without_secrets({"api_key": None, "token": "", "max_tokens": 3, "password": 7}) == {
        "api_key": None,
        "token": "",
        "max_tokens": 3,
        "password": 7,
    }
