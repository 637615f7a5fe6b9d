"""A run among agents that misbehave: each episode has its outcome, its siblings are trained, the run goes on."""

from __future__ import annotations

import asyncio
import io
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from rich.console import Console

import ludus
from ludus.api.live import watch
from ludus.api.play import play
from ludus.config import Config
from ludus.runs.export import write_failures
from ludus.runs.interactions import interactions
from ludus.runs.report import write_report
from ludus.runs.store import RunStore
from ludus.types import Episode
from tests.api.agents import Counts, Misbehaves, ask

BAD = ("crash", "hang", "raise", "shout", "unknown")


def make_config(model: Path, root: Path, mode: str, /, **changes: Any) -> Config:
    agents = {"mode": mode, **({"subproc_max_workers": 3} if mode == "subproc" else {})}
    values: dict[str, Any] = {
        "name": mode,
        "run_root": str(root),
        "model": {"path": str(model), "dtype": "float32"},
        "engine": {"kv_bytes": 2**22},
        "gconfig": {"n_samples": 3, "max_new_tokens": 4},
        "train_dataset": {"batch_size": 2, "shuffle": False},
        "rollout": {"agent": agents, "retries": 0, "episode_timeout_s": 6.0},
        "total_train_steps": 3,
    }
    return Config(**{**values, **changes})


def outcomes(run: Path) -> dict[str, list[Episode]]:
    """The episodes of each row that did not end well."""
    with RunStore.open(run) as store:
        ended: dict[str, list[Episode]] = {}
        for episode in store.episodes():
            if episode.outcome.kind != "ok":
                ended.setdefault(episode.task_id, []).append(episode)
        return ended


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", ["subproc", "inline"])
def test_the_run_goes_on_among_agents_that_misbehave(mode: str, tiny_model_folder: Path, tmp_path: Path) -> None:
    """One episode of each group misbehaves in its own way; its two siblings are trained, and all steps are taken."""
    is_alone = mode == "subproc"
    bad = BAD if is_alone else ("good", "hang", "raise", "good", "unknown")
    rows = [{"what": what, "row": row, "is_alone": is_alone} for row, what in enumerate((*bad, "good"))]
    notes = tmp_path / "notes"
    notes.mkdir()
    config = make_config(tiny_model_folder, tmp_path, mode)
    summary = ludus.Trainer(config, rows).train(Misbehaves, workflow_kwargs={"notes": str(notes)})
    assert summary.steps == 3 and summary.ledger.trained > 0
    ended = outcomes(tmp_path / mode)
    kinds = {rows[int(task.removeprefix("row"))]["what"]: [e.outcome.kind for e in ended[task]] for task in ended}
    expected = {"hang": ["timeout"], "raise": ["failed"], "unknown": ["failed"]}
    assert kinds == (expected | {"crash": ["failed"]} if is_alone else expected)
    reasons = " ".join(episode.outcome.reason for episodes in ended.values() for episode in episodes)
    assert "KeyError: 'nothing here'" in reasons and "unknown completion id 'chatcmpl-nobody'" in reasons
    assert not is_alone or "killed by SIGKILL" in reasons


def test_a_call_after_the_end_is_refused_and_recorded_nowhere(tiny_model_folder: Path, tmp_path: Path) -> None:
    """A task that an agent leaves behind asks a closed session: an error of the protocol, and no turn."""
    said: list[int] = []
    urls: list[str] = []

    async def agent(data: Mapping[str, Any], *, base_url: str, http_client: Any) -> float:
        for url in urls[:1]:
            async with httpx.AsyncClient() as client:
                response = await client.post(url + "/chat/completions", json={"messages": []})
            said.append(response.status_code)
        urls.append(base_url)
        await ask(base_url, http_client)
        return 1.0

    one_by_one = {"gconfig": {"n_samples": 1, "max_new_tokens": 2}, "rollout": {"max_concurrent_rollouts": 1}}
    config = make_config(tiny_model_folder, tmp_path, "inline", **one_by_one)
    first, second = play(agent, [{}, {}], config=config)
    assert said and 400 <= said[0] < 500
    assert [len(episode.session.turns) for episode in (first, second)] == [1, 1]


# ---- what an agent may be, and what it may return


@pytest.mark.parametrize("mode", ["inline", "subproc"])
def test_instances_keep_their_state_and_closures_work(mode: str, tiny_model_folder: Path, tmp_path: Path) -> None:
    """An instance goes on counting from where it was; a closure brings what it closes over."""
    agents = {"mode": mode, **({"subproc_max_workers": 1} if mode == "subproc" else {})}
    config = make_config(
        tiny_model_folder,
        tmp_path,
        mode,
        gconfig={"n_samples": 3, "max_new_tokens": 2},
        rollout={"agent": agents, "max_concurrent_rollouts": 1},
    )
    counter = Counts(40)
    counter.count += 1
    assert [episode.reward for episode in play(counter, [{}], config=config)] == [42.0, 43.0, 44.0]
    worth = {"found": 0.75}

    async def closure(data: Mapping[str, Any], *, base_url: str, http_client: Any) -> float:
        await ask(base_url, http_client)
        return worth["found"]

    assert [episode.reward for episode in play(closure, [{}], config=config)] == [0.75] * 3


@pytest.mark.parametrize("mode", ["inline", "subproc"])
def test_rewards_of_any_kind(mode: str, tiny_model_folder: Path, tmp_path: Path) -> None:
    """True, numpy's scalars, and a mapping that names any completion of the episode, by any of its names."""

    async def agent(data: Mapping[str, Any], *, base_url: str, api_key: str, http_client: Any) -> Any:
        import numpy

        client = openai.AsyncOpenAI(base_url=base_url, api_key=api_key, http_client=http_client, max_retries=0)
        messages: Any = [{"role": "user", "content": "Guess."}]
        first = await client.chat.completions.create(model="default", messages=messages)
        second = await client.responses.create(model="default", input="Guess.")
        return {
            "bool": True,
            "float32": numpy.float32(0.5),
            "int64": numpy.int64(3),
            "array": numpy.array(2.0),
            "first": {first.id: 0.25},
            "both": {first.id: numpy.float64(0.25), second.id: True},
        }[data["kind"]]

    kinds = ["bool", "float32", "int64", "array", "first", "both"]
    config = make_config(
        tiny_model_folder,
        tmp_path,
        mode,
        gconfig={"n_samples": 1, "max_new_tokens": 2},
        rollout={"agent": {"mode": mode}},
    )
    episodes = play(agent, [{"kind": kind} for kind in kinds], config=config)
    assert [episode.outcome.kind for episode in episodes] == ["ok"] * 6, [episode.outcome for episode in episodes]
    assert [episode.reward for episode in episodes] == [1.0, 0.5, 3.0, 2.0, 0.25, 1.25]
    assert list(episodes[4].rewards) == [episodes[4].session.turns[0].id]
    assert len(episodes[5].rewards) == 2


class Fails:
    """Of ten episodes one raises, one hangs, and one never calls the model."""

    def __init__(self) -> None:
        self.num_played = 0

    async def run(self, data: Mapping[str, Any], *, base_url: str, http_client: Any, **_: Any) -> float:
        number = self.num_played = self.num_played + 1
        if number % 10 == 3:
            raise ValueError(f"no move {number}")
        if number % 10 == 6:
            await asyncio.sleep(600)
        if number % 10 == 9:
            return 1.0
        _, text = await ask(base_url, http_client)
        return float(len(text) % 5)


def test_failures_are_named_wherever_one_looks(tiny_model_folder: Path, tmp_path: Path) -> None:
    """A run of which 30 % of the episodes raise, hang or never call: console, report and export say how many of each
    and why."""
    out = io.StringIO()
    config = make_config(
        tiny_model_folder,
        tmp_path,
        "inline",
        train_dataset={"batch_size": 10},
        rollout={"retries": 0, "episode_timeout_s": 2.0, "max_concurrent_rollouts": 30},
        total_train_steps=1,
    )
    agent = Fails()
    with watch(Console(file=out, width=200), "inline") as observer:
        summary = ludus.Trainer(config, [{"row": row} for row in range(10)]).train(agent, observer=observer)
    with RunStore.open(tmp_path / "inline") as store:
        counts = Counter(episode.outcome.kind for episode in store.episodes())
        assert (counts["failed"], counts["timeout"], counts["ok"]) == (6, 3, 21)
        html = write_report(store).html.read_text()
        beside = write_failures(store.failures(), tmp_path / "rows.jsonl")
        rows = [row for episode in store.episodes() for row in interactions(episode)]
    assert beside is not None
    exported = [json.loads(line) for line in beside.read_text().splitlines()]
    raised, never = "ValueError: no move", "the agent never called the model"
    late = "the agent took longer than rollout.episode_timeout_s=2.0"
    for reason, outcome in ((raised, "failed"), (never, "failed"), (late, "timeout")):
        (group,) = [each for each in exported if each["reason"].startswith(reason)]
        assert (group["count"], group["outcome"]) == (3, outcome)
        assert f"3 x {outcome}: {reason}" in out.getvalue()
        assert f"3 x {outcome}: {reason}" in html
        assert any(each.count == 3 and each.reason.startswith(reason) for each in summary.failures)
    said = (out.getvalue(), html, beside.read_text())
    for line in ('raise ValueError(f"no move {number}")', "await asyncio.sleep(600)"):  # of the first tracebacks
        assert all(line.partition("(")[0] in each for each in said), line
    assert json.loads((tmp_path / "inline" / "summary.json").read_text())["failures"][0]["count"] == 3
    assert {row["outcome"] for row in rows} >= {"ok"} and all("reason" in row for row in rows)
