"""The report is the live page with the run's own numbers inside, and needs nothing but itself."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ludus.runs import report
from ludus.runs.report import write_report
from ludus.runs.store import RunStore
from ludus.types import Episode, Outcome


def _decode(ids: Sequence[int]) -> str:
    return "".join(f"<w{token}>" for token in ids)


def data_of(html: Path) -> Any:
    """By route what the page has inside."""
    [data] = re.findall(r'<script type="application/json" id="ludus-data">(.*?)</script>', html.read_text("utf-8"))
    return json.loads(data)


def test_the_page_is_self_contained(make_run: Callable[..., RunStore]) -> None:
    """No script, style sheet, font or picture is fetched from anywhere."""
    with make_run(num_steps=6) as run:
        html = write_report(run).html.read_text(encoding="utf-8")
    assert not re.search(r"""<[^>]+(?:src|href)\s*=|@import""", html) and "default-src 'none'" in html


def test_the_page_shows_what_the_run_recorded(make_run: Callable[..., RunStore]) -> None:
    """Every metric at every step, the ledger, episodes with turns and tokens, each under the live page's route."""
    with make_run(num_steps=6) as run:
        run.write_summary({"success_before": 0.03, "success_after": 0.78, "train_seconds": 75, "ledger": None})
        files = write_report(run, decode=_decode)
        rows, episodes = run.metrics(), run.episode_rows()
    data = data_of(files.html)
    name = f"/api/runs/{run.name}"
    assert data[name]["summary"]["success_after"] == 0.78 and data[name]["state"] in ("running", "finished")
    metrics = data[f"{name}/metrics"]
    assert metrics["steps"] == [step for step, _ in rows]
    assert metrics["series"]["train/loss"] == [numbers["train/loss"] for _, numbers in rows]
    assert data[f"{name}/ledger"]["sampled"] == sum(numbers["ledger/sampled"] for _, numbers in rows)
    listed = data[f"{name}/episodes"]
    assert {row["id"] for row in listed["episodes"]} == {row["id"] for row in episodes} and listed["num_unread"] == 0
    best = max(episodes, key=lambda row: row["reward"] or 0.0)["id"]
    episode = data[f"{name}/episodes/{best}"]
    tokens = data[f"{name}/episodes/{best}/turns/{episode['turns'][0]['id']}/tokens"]["tokens"]
    assert tokens[0]["text"] == f"<w{tokens[0]['id']}>" and tokens[-1]["logprob"] < 0
    assert set(data) > {f"{name}/{part}" for part in ("health", "failures", "forks", "groups", "steps/5")}
    assert files.png is not None and files.png.exists()


def test_the_ledger_is_that_of_the_summary(make_run: Callable[..., RunStore]) -> None:
    """Tokens of evaluations and unused ones are on the page as they are in summary.json."""
    ledger = {"sampled": 24_001, "trained": 20_000, "masked": {"evaluation": 3_000, "unused": 1_001}}
    with make_run(num_steps=2) as run:
        run.write_summary({"ledger": ledger})
        data = data_of(write_report(run).html)
    found = data[f"/api/runs/{run.name}/ledger"]
    assert {key: found[key] for key in ledger} == ledger and found["balanced"]


def test_before_the_end_the_ledger_counts_evaluations_too(
    make_run: Callable[..., RunStore], make_episode: Callable[..., Episode]
) -> None:
    """While a run trains, the page adds the tokens of evaluations that are in the store to those of the steps."""
    played = make_episode(900, is_eval=True)
    with make_run(num_steps=2) as run:
        run.add_episode(played, step=1)
        data = data_of(write_report(run).html)
        sampled = sum(metrics["ledger/sampled"] for _, metrics in run.metrics()) + played.session.num_sampled_tokens
    found = data[f"/api/runs/{run.name}/ledger"]
    assert found["sampled"] == sampled and found["balanced"]
    assert found["masked"]["evaluation"] == played.session.num_sampled_tokens


def test_each_sampled_token_carries_its_numbers(tmp_path: Path, make_episode: Callable[..., Episode]) -> None:
    """Its id, logprob, version and what training did with it."""
    episode = make_episode(5, num_turns=1, version=4)
    turn = episode.session.turns[0]
    with RunStore.create(tmp_path, "run", "") as run:
        run.add_episode(episode, step=2)
        run.add_credit(2, {turn.id: "kept_set"})
        data = data_of(write_report(run, decode=_decode).html)
    tokens = data[f"/api/runs/run/episodes/{episode.id}/turns/{turn.id}/tokens"]["tokens"]
    sampled = [token for token in tokens if token["kind"] == "sampled"]
    assert [token["id"] for token in sampled] == list(turn.sampled.token_ids)
    assert [token["logprob"] for token in sampled] == list(turn.sampled.logprobs)
    assert {(token["version"], token["mask"], token["loss"]) for token in sampled} == {(4, "kept_set", None)}


def test_text_of_agents_cannot_break_the_page(tmp_path: Path, make_episode: Callable[..., Episode]) -> None:
    """Markup in messages, tokens and the run's configuration is data, not run; numbers that JSON has not are null."""
    with RunStore.create(tmp_path, "run", "name: <script>alert(1)</script>") as run:
        run.add_episode(replace(make_episode(5), metadata={"nan": float("nan"), "</script>": "<!--"}), step=0)
        files = write_report(run, decode=lambda ids: "</script><script>alert(2)</script>" * len(ids))
    assert files.html.read_text("utf-8").count("<script") == 2
    assert data_of(files.html)["/api/runs/run/episodes/ep-5"]["metadata"] == {"nan": None, "</script>": "<!--"}


def test_a_large_run_has_a_page_of_bounded_size(
    make_run: Callable[..., RunStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest episodes are listed, and only so many tokens shown, those of prompts among them, which each turn has
    anew; the counts are those of all."""
    monkeypatch.setattr(report, "MOST_LISTED", 10)
    monkeypatch.setattr(report, "MOST_TOKENS", 300)
    with make_run(num_steps=12) as run:
        data = data_of(write_report(run).html)
    name = f"/api/runs/{run.name}"
    assert data[f"{name}/episodes"]["total"] == 96 and len(data[f"{name}/episodes"]["episodes"]) < 40
    shown = [value["total"] for route, value in data.items() if route.endswith("/tokens")]
    assert 0 < sum(shown) <= 300


def test_a_run_whose_episodes_failed_names_why(tmp_path: Path, make_episode: Callable[..., Episode]) -> None:
    """Those that failed alike count together, with the first one's trace, which can be opened."""
    with RunStore.create(tmp_path, "run", "") as run:
        for number in range(6):
            reason = f"Traceback\n  move {number}\nValueError: no move {number}"
            failed = replace(make_episode(number, reward=None), outcome=Outcome("failed", reason))
            run.add_episode(failed, step=1)
        data = data_of(write_report(run).html)
    (group,) = data["/api/runs/run/failures"]["failures"]
    assert (group["count"], group["reason"], group["first"]) == (6, "ValueError: no move 0", "ep-0@1")
    texts = [finding["text"] for finding in data["/api/runs/run/health"]["findings"]]
    said = "100% of the last 6 episodes ended as failed, most often: ValueError: no move 0"
    assert any(said in each for each in texts)


def test_failures_of_very_many_kinds_are_all_counted(tmp_path: Path, make_episode: Callable[..., Episode]) -> None:
    """The most frequent are named, and the others counted together."""
    with RunStore.create(tmp_path, "run", "") as run:
        kinds = [f"KeyError: '{letter}'" for letter in "abcdefghijklmnopqrstuvwxyz"]
        for number, reason in enumerate(["ValueError: no", "ValueError: no", *kinds]):
            run.add_episode(replace(make_episode(number), outcome=Outcome("failed", reason)), step=1)
        data = data_of(write_report(run).html)
    first, *_, rest = groups = data["/api/runs/run/failures"]["failures"]
    assert (first["count"], first["reason"]) == (2, "ValueError: no") and len(groups) == 21
    assert (rest["count"], rest["reason"], rest["trace"]) == (7, "something else, of 7 kinds", "")
    assert sum(each["count"] for each in groups) == 28


def test_an_empty_run_has_a_page(tmp_path: Path) -> None:
    """A run that has not made a step yet is reported, without a curve."""
    with RunStore.create(tmp_path, "run", "") as run:
        files = write_report(run)
    assert files.png is None and data_of(files.html)["/api/runs/run"]["steps"] == []
