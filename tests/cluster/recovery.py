"""Runs whose processes are killed in the middle, and what must be true afterwards: a tiny model, real processes."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path

import httpx

from ludus.cluster.status import read_status
from ludus.runs.store import RunStore

AGENT = """
import json, time, urllib.request


class Agent:
    def run(self, data, base_url, api_key, **extra_kwargs):
        for _ in range(2):
            body = {"messages": [{"role": "user", "content": data["question"]}], "max_tokens": 6}
            headers = {"content-type": "application/json", "authorization": f"Bearer {api_key}"}
            request = urllib.request.Request(base_url + "/chat/completions", json.dumps(body).encode(), headers)
            text = json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
            time.sleep(0.3)
        return float(len(text))
"""
KEYS = (
    "train_dataset.batch_size=2",
    "gconfig.n_samples=4",
    "model.dtype=float32",
    "engine.kind=server",
    "engine.weights=shared_memory",
    "engine.kv_bytes=33554432",
    "rollout.agent.mode=subproc",
    "rollout.agent.subproc_max_workers=4",
    "rollout.agent.workers=2",
    "checkpoint.every_steps=1",
    "scheduler.engine.cpus=1",
    "scheduler.rollout.cpus=0.5",
)


def write_run(folder: Path) -> None:
    (folder / "agent.py").write_text(AGENT)
    (folder / "run.yaml").write_text("workflow: agent.py:Agent\ntrain_dataset: {path: rows.jsonl}\n")
    questions = ["Name a colour.", "Name an animal.", "Name a number."]
    (folder / "rows.jsonl").write_text("".join(json.dumps({"question": each}) + "\n" for each in questions))


def train_command(model: Path, name: str, steps: int, *keys: str) -> list[str]:
    words = [f"name={name}", f"model.path={model}", f"total_train_steps={steps}", *KEYS, *keys]
    return [sys.executable, "-m", "ludus", "train", "run.yaml", *words]


def environment(**env: str) -> dict[str, str]:
    root = str(Path(__file__).parents[2])
    return {**os.environ, "PYTHONPATH": root, **env}


def wait_for_step(run: Path, step: int, timeout_s: float = 400) -> None:
    """Return when the run has trained so many steps."""
    give_up_at = time.monotonic() + timeout_s
    while num_steps(run) < step:
        assert time.monotonic() < give_up_at, f"{num_steps(run)} steps in {timeout_s} s: {tails(run)}"
        time.sleep(0.2)


def num_steps(run: Path) -> int:
    path = run / "metrics.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


def tails(run: Path) -> str:
    return "\n".join(f"--- {log.name}\n{log.read_text()[-1500:]}" for log in sorted((run / "roles").glob("*.log")))


def wait_for_role(run: Path, role: str, index: int = 0, timeout_s: float = 300) -> int:
    """The pid of a ready process of the run, which is on this machine."""
    give_up_at = time.monotonic() + timeout_s
    while True:
        run_status = read_status(run)
        if run_status is not None:
            headers = {"authorization": f"Bearer {run_status.head.key}"}
            told = httpx.get(run_status.head.url + "/roles", headers=headers, trust_env=False).json()["roles"]
            pids = [each["pid"] for each in told if (each["name"], each["index"]) == (role, index)]
            if pids:
                return int(pids[0])
        assert time.monotonic() < give_up_at, f"{role}-{index} is not there: {tails(run)}"
        time.sleep(0.2)


def wait_for_end(run: Path, timeout_s: float = 400) -> None:
    """Return when the run has ended and written its summary."""
    give_up_at = time.monotonic() + timeout_s
    while not (run / "summary.json").exists():
        assert time.monotonic() < give_up_at, f"no end in {timeout_s} s: {tails(run)}"
        time.sleep(0.2)


def check_recovered(run: Path, steps: int, *, was_lost: bool) -> None:
    """The run has ended, its ledger balances, and no group was trained twice."""
    summary = json.loads((run / "summary.json").read_text())
    assert summary["steps"] == steps
    ledger = summary["ledger"]
    assert ledger["sampled"] == ledger["trained"] + sum(ledger["masked"].values())
    with RunStore.open(run) as store:
        episodes = list(store.episodes(is_eval=False))
    with closing(sqlite3.connect(run / "run.db")) as db:
        step_of = dict(db.execute("SELECT turn_id, step FROM credit WHERE advantage IS NOT NULL"))
    steps_of: dict[str, set[int]] = {}
    for episode in episodes:
        trained = {step_of[turn.id] for turn in episode.session.turns if turn.id in step_of}
        steps_of.setdefault(episode.group_id, set()).update(trained)
    assert len({episode.id for episode in episodes}) == len(episodes)
    num_played = ledger["sampled"] - ledger["masked"].get("evaluation", 0)
    assert sum(episode.session.num_sampled_tokens for episode in episodes) == num_played
    assert all(len(found) <= 1 for found in steps_of.values()), steps_of
    lost = [episode.id for episode in episodes if episode.outcome.kind == "lost"]
    assert bool(lost) == was_lost
