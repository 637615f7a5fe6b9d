from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
import tempfile
import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from httpx_sse import EventSource

from ludus.errors import UserError
from ludus.processes.files import hold
from ludus.runs.folder import RESUMED
from ludus.runs.store import RunStore
from ludus.runs.tokens import path_of
from ludus.runs.watch import follow
from ludus.runs.watch.folder import RunsFolder, check_watchable
from ludus.runs.watch.index import EpisodeIndex
from ludus.runs.watch.page import STATIC
from tests.runs.conftest import episode_of
from tests.runs.watch.conftest import NUM_STEPS, PER_STEP, Watched, wait_for, wait_until_read, watching, write_run

NUM = NUM_STEPS * PER_STEP + 1


def episodes(watched: Watched, **given: object) -> Any:
    return watched.get("runs/run/episodes", **given)


def test_the_list_of_runs_says_where_each_stands(root: Path) -> None:
    """Runs below a folder, each by its way from there; one that is written to is running, one that ended finished."""
    shutil.copytree(root / "run", root / "team" / "user" / "other")
    (root / "team" / "user" / "other" / "summary.json").write_text('{"ledger": {"sampled": 3, "trained": 3}}')
    try:
        with watching(root) as watched:
            found: Any = watched.get("runs")["runs"]
            assert {each["id"]: each["state"] for each in found} == {
                "run": "interrupted",
                "team~user~other": "finished",
            }
            assert {each["num_steps"] for each in found} == {NUM_STEPS - 1} and found[0]["success"] is not None
            lock = hold(root / "run" / "writer.lock")
            assert lock is not None
            try:
                assert watched.get("runs/run")["state"] == "running"
            finally:
                os.close(lock)
            assert watched.get("runs/run")["state"] == "interrupted"
            ledger: Any = watched.get("runs/team~user~other/ledger")
            assert ledger["sampled"] == 3 and ledger["balanced"]
    finally:
        shutil.rmtree(root / "team")


def test_the_overview_has_what_the_folder_has(watched: Watched) -> None:
    """Configuration, names of metrics, formulas with the run's numbers, models that there are."""
    run: Any = watched.get("runs/run")
    assert run["steps"] == [*range(NUM_STEPS)] and "rollout/reward" in run["metrics"] and run["damage"] == []
    assert run["config"]["algorithm"] == {"name": "grpo"} and run["summary"] is None
    formula = run["algorithm"]["formula"]
    assert run["algorithm"]["name"] == "grpo" and any(line.startswith("loss = ") for line in formula)
    assert formula[-1].startswith("groups = up to 0.25 of a batch")
    assert run["models"] == [{"name": "base", "label": "base: nowhere"}] and run["checkpoints"] == []
    curves: Any = watched.get("runs/run/metrics", names="rollout/reward,eval/success,nothing")
    assert len(curves["series"]["rollout/reward"]) == NUM_STEPS and curves["series"]["nothing"] == [None] * NUM_STEPS
    assert curves["evals"]["steps"] == [0, 10, 11] and None not in curves["evals"]["series"]["eval/success"]


def test_the_ledger_balances_step_by_step(watched: Watched) -> None:
    """What steps say adds up, and the tokens of evaluations are in it once."""
    ledger: Any = watched.get("runs/run/ledger")
    assert ledger["balanced"] and len(ledger["by_step"]) == NUM_STEPS
    assert all(each["sampled"] == each["trained"] + sum(each["masked"].values()) for each in ledger["by_step"])
    assert (
        ledger["sampled"] == ledger["trained"] + sum(ledger["masked"].values()) and ledger["masked"]["evaluation"] > 0
    )


def test_filters_find_what_a_look_at_every_episode_finds(watched: Watched) -> None:
    """Whatever is asked for, the page has those episodes and no others, and counts them."""
    everything = episodes(watched, limit=1000)
    assert everything["total"] == NUM + 10 and len(everything["episodes"]) == NUM + 10
    rows = everything["episodes"]
    assert [each["num"] for each in rows] == sorted((each["num"] for each in rows), reverse=True)
    asked: list[tuple[dict[str, object], Any]] = [
        ({"step": 3}, lambda row: row["step"] == 3),
        ({"group": rows[-1]["group_id"]}, lambda row: row["group_id"] == rows[-1]["group_id"]),
        ({"outcome": "failed"}, lambda row: row["outcome"] == "failed"),
        ({"eval": 1}, lambda row: row["is_eval"]),
        ({"eval": 0, "reward_min": 0.3, "reward_max": 0.6}, lambda row: 0.3 <= (row["reward"] or 0) <= 0.6),
        ({"turns_min": 4}, lambda row: row["num_turns"] >= 4),
        ({"advantage_max": 0}, lambda row: row["advantage_mean"] is not None and row["advantage_mean"] <= 0),
        ({"agent": "helper"}, lambda row: "helper" in row["agent"]),
        ({"tool": "search"}, lambda row: row["id"] == "ep-rich"),
        ({"stale_min": -1}, lambda row: row["staleness_max"] is not None),
    ]
    for given, is_wanted in asked:
        expected = {row["num"] for row in rows if is_wanted(row) and not (given.get("eval") == 0 and row["is_eval"])}
        found = episodes(watched, limit=1000, **given)
        assert {row["num"] for row in found["episodes"]} == expected and found["total"] == len(expected) > 0, given
        assert sum(found["outcomes"].values()) >= found["total"]
    assert everything["agents"] == ["helper", "main"] and everything["tools"] == ["search"]


def test_text_is_found_by_words_begun_words_and_other_scripts(watched: Watched) -> None:
    """Every word must be there, the last may be begun; quotes and operators are just characters."""
    assert episodes(watched, q="no such quest")["total"] == 1
    assert episodes(watched, q="question such")["total"] == 1
    assert episodes(watched, q="higher")["total"] > 20
    assert [row["id"] for row in episodes(watched, q="ep-20")["episodes"]] == ["ep-20"]
    assert {row["task_id"] for row in episodes(watched, q="task-2")["episodes"]} == {"task-2"}
    for odd in ('"', "NEAR(", "*", "a OR b", "text:no", "no AND", "'; DROP TABLE episodes", "\\", "((", "中"):
        assert episodes(watched, q=odd)["total"] >= 0
    assert episodes(watched, limit=1)["total"] == NUM + 10


def test_a_histogram_counts_every_reward_once(watched: Watched) -> None:
    """Its bins stay where they are whatever is filtered; bounds of rewards do not empty it."""
    whole, part = episodes(watched), episodes(watched, outcome="ok", reward_min=0.5)
    assert sum(whole["histogram"]["counts"]) == sum(
        each["reward"] is not None for each in episodes(watched, limit=1000)["episodes"]
    )
    edges = whole["histogram"]["edges"]
    assert part["histogram"]["edges"] == edges and 11 <= len(edges) <= 22
    assert sum(part["histogram"]["counts"]) > part["total"]
    assert all(f"{edge:.3f}".rstrip("0").rstrip(".") == f"{edge:g}" for edge in edges)  # as they are shown


def test_what_is_chosen_of_a_histogram_is_what_it_counts(watched: Watched) -> None:
    """From one edge on and below another one there are as many episodes as in the bins between."""
    found = episodes(watched)["histogram"]
    edges, counts = found["edges"], found["counts"]
    for first, last in ((0, 1), (2, 7), (5, len(counts)), (0, len(counts) - 1)):
        given = {"reward_min": edges[first]} | ({"reward_below": edges[last]} if last < len(counts) else {})
        assert episodes(watched, **given)["total"] == sum(counts[first:last])


def test_numbers_are_filtered_as_they_are_shown(watched: Watched) -> None:
    """A reward or an advantage that is copied from the table finds its row, as least and as most."""
    rows = [row for row in episodes(watched, limit=1000)["episodes"] if row["reward"] is not None]
    for row in rows[:30]:
        bound = f"{row['reward']:.3f}"
        found = episodes(watched, reward_min=bound, reward_max=bound, limit=1000)["episodes"]
        assert row["num"] in {each["num"] for each in found}
        assert {f"{each['reward']:.3f}" for each in found} == {bound}


def test_pages_follow_one_another(watched: Watched) -> None:
    """Sorted as asked, without a gap or a repetition; what has no number comes last."""
    for sort in ("num", "-num", "reward", "-reward", "turns", "tokens"):
        pages = [episodes(watched, sort=sort, offset=offset, limit=40)["episodes"] for offset in (0, 40, 80)]
        nums = [row["num"] for page in pages for row in page]
        assert len(nums) == len(set(nums)) == NUM + 10
    values = [row["reward"] for row in episodes(watched, sort="-reward", limit=1000)["episodes"]]
    known = [value for value in values if value is not None]
    assert values[: len(known)] == sorted(known, reverse=True)


def test_an_episode_has_its_turns_its_tree_and_its_siblings(watched: Watched) -> None:
    """Forks with their reasons, messages once, what was not recorded null, spans in time."""
    episode: Any = watched.get("runs/run/episodes/ep-rich")
    assert [turn["id"] for turn in episode["turns"]] == ["t0", "t1"] and episode["outcome"] == "failed"
    first, second = episode["turns"]
    assert second["fork"] == {"reason": "edit", "detail": None} and second["agent"] == "helper"
    assert (
        first["reward"] == pytest.approx(-0.3) and first["return"] == pytest.approx(-0.3) and second["return"] is None
    )
    assert first["messages"][1]["tool_calls"] == [{"id": "call_1", "name": "add", "arguments": '{"a": 1,  "b": 2}'}]
    assert first["first_token_at"] is None and first["version_max"] == 2**40 and first["tools"] == ["add"]
    assert [(span["kind"], span["label"]) for span in episode["spans"]] == [
        ("model", "turn 1, main"),
        ("tool", "search"),
    ]
    assert episode["spans"][1]["start_s"] == pytest.approx(0.4)
    plain: Any = watched.get("runs/run/episodes/ep-20")
    assert {each["id"] for each in plain["siblings"]} == {f"ep-{number}" for number in range(16, 24)}
    assert all(len(turn["messages"]) <= 2 for turn in plain["turns"])


def test_an_episode_that_was_played_again_leads_to_its_attempts(tmp_path: Path) -> None:
    """The last one has the id alone; each names all of them."""
    folder = write_run(tmp_path, num_steps=1)
    with RunStore.open(folder) as store:
        store.add_episode(episode_of(3, reward=None, kind="failed"), step=0)
    with watching(folder) as watched:
        wait_until_read(watched)
        attempts: Any = watched.get("runs/run/episodes/ep-3")["attempts"]
        assert [each["outcome"] for each in attempts][-1] == "failed" and attempts[-1]["id"] == "ep-3"
        assert watched.get(f"runs/run/episodes/{attempts[0]['id']}")["attempts"] == attempts and len(attempts) == 2


def test_tokens_of_a_step_add_up_to_its_loss(watched: Watched) -> None:
    """Summed from the page's own data, over all turns of the step's episodes."""
    step: Any = watched.get("runs/run/steps/3")
    total, num = 0.0, 0
    for row in episodes(watched, step=3, eval=0)["episodes"]:
        for turn in watched.get(f"runs/run/episodes/{row['id']}")["turns"]:  # type: ignore[attr-defined]
            tokens: Any = watched.get(f"runs/run/episodes/{row['id']}/turns/{turn['id']}/tokens")
            assert len(tokens["tokens"]) == tokens["total"]
            assert [token["kind"] for token in tokens["tokens"]].count("prompt") == tokens["prompt_total"]
            sampled = [token for token in tokens["tokens"] if token["kind"] == "sampled"]
            total += sum(token["loss"] for token in sampled if token["loss"] is not None)
            num += sum(token["loss"] is not None for token in sampled)
    assert step["loss"] == pytest.approx(step["loss_of_tokens"], abs=1e-6)
    assert num == step["num_trained"] > 100 and total == pytest.approx(step["loss"], abs=1e-6)


def test_pages_of_tokens_are_the_whole(watched: Watched) -> None:
    """Ids, logprobs, versions and kept sets as they were sampled; one that was not recorded has none."""
    whole: Any = watched.get("runs/run/episodes/ep-rich/turns/t0/tokens")
    parts = [
        token
        for offset in range(0, 5, 2)
        for token in watched.get("runs/run/episodes/ep-rich/turns/t0/tokens", offset=offset, limit=2)["tokens"]  # type: ignore[attr-defined]
    ]
    assert parts == whole["tokens"] and [token["id"] for token in parts] == [1, 2, 5, 6, 7]
    assert [token["kept"] for token in parts[2:]] == [2, None, 3] and parts[4]["version"] == 2**40
    listed: Any = watched.get("runs/run/episodes/ep-rich/turns/t0/alternatives/2")
    assert [each["id"] for each in listed["alternatives"]] == [5, 9]
    assert "did not ask" in watched.get("runs/run/episodes/ep-rich/turns/t0/alternatives/3")["unavailable"]  # type: ignore[operator]


def test_groups_say_whether_they_teach(watched: Watched) -> None:
    """A group whose members all got the same is flat."""
    groups: Any = watched.get("runs/run/groups", step=3)["groups"]
    assert {group["id"] for group in groups} == {"group-3", "g"} and sum(group["num_members"] for group in groups) == 9
    assert not any(group["flat"] for group in groups)


def test_two_moments_are_compared_on_the_same_rows(watched: Watched) -> None:
    """Paired by task, with an interval, of one run or of two; without rows in both it says why not."""
    found: Any = watched.get("compare", a="run", b="run", step_a=0, step_b=NUM_STEPS - 1)
    rewards = [number / 2000 for number in range(1000, 1040, 8)]
    assert found["paired"]["rows"] == 5 and found["paired"]["mean_a"] == 0.25
    assert found["paired"]["difference"] == pytest.approx(sum(rewards) / 5 - 0.25)
    low, high = found["paired"]["interval"]
    assert low < found["paired"]["difference"] < high and found["why_not"] is None
    assert {row["name"] for row in found["metrics"]} > {"rollout/reward", "train/loss"}
    assert (found["a"]["evaluated_step"], found["b"]["evaluated_step"]) == (0, NUM_STEPS - 1)
    found = watched.get("compare", a="run", b="run", step_a=3)
    assert found["why_not"] == f"run has no evaluation of step 3. Choose one of the steps 0, {NUM_STEPS - 1}."
    RunStore.create(watched.folder.parent, "other", "model: {path: x}\n").close()
    try:
        with watching(watched.folder.parent) as both:
            found = both.get("compare", a="run", b="other")
        assert found["paired"] is None and found["why_not"].startswith("other has no evaluation: ")
    finally:
        shutil.rmtree(watched.folder.parent / "other")


def write_evaluations(root: Path, name: str, path: str, *evaluations: dict[str, float | None]) -> None:
    """A run that played held-out rows at step 4, and after a resume again if there are several. None: failed."""
    with RunStore.create(root, name, f"model: {{path: x}}\nvalid_dataset: {{path: '{path}', mix: {{}}}}\n") as store:
        store.add_metrics(9, {"rollout/reward": 0.5})
        for rewards in evaluations:
            for seed, (task, reward) in enumerate(rewards.items()):
                kind = "ok" if reward is not None else "failed"
                episode = episode_of(seed, reward=reward, is_eval=True, kind=kind)
                store.add_episode(replace(episode, id=f"e000004-{task}", task_id=f"eval-{task}"), step=4)


def test_pairs_say_what_they_are_of_and_what_they_lack(tmp_path: Path) -> None:
    """An evaluation that was played again after a resume counts once; rows without a reward, rows of one side alone and
    other held-out rows are named."""
    write_evaluations(tmp_path, "a", "rows.py:held_out", {"row0": 0.0, "row1": 0.0}, {"row0": 1.0, "row1": 0.5})
    write_evaluations(
        tmp_path, "b", "other.py:rows", {"row0": 0.5, "row1": 0.5, "row2": 0.25, "row3": None, "row4": None}
    )
    with watching(tmp_path) as both:
        found: Any = both.get("compare", a="a", b="b")
        alike: Any = both.get("compare", a="a", b="a")
    assert (found["paired"]["mean_a"], found["paired"]["mean_b"], found["paired"]["rows"]) == (0.75, 0.5, 2)
    assert (found["a"]["step"], found["a"]["evaluated_step"]) == (9, 4)
    other, lacking, alone = found["notes"]
    assert "a and b name different held-out rows" in other
    assert lacking.startswith("b at step 4: episodes without a reward") and "rejected: 2 of 5." in lacking
    assert lacking.endswith("rows without any are left out: 2.")
    assert alone == "Rows that only one of the two has played are left out: 3."
    assert alike["notes"] == []


@pytest.mark.parametrize(
    ("path", "status", "says"),
    [
        ("nothing", 404, "no such route"),
        ("runs/none", 404, "no run 'none'"),
        ("runs/run/nothing", 404, "no such route"),
        ("runs/run/episodes/none", 404, "no episode 'none'"),
        ("runs/run/episodes/ep-1/turns/none/tokens", 404, "no turn 'none'"),
        ("runs/run/episodes/ep-rich/turns/t0/alternatives/0", 404, "was not sampled"),
        ("runs/run/episodes/ep-rich/turns/t0/alternatives/x", 400, "Invalid value for 'i'"),
        ("runs/run/steps/99999", 404, "no step 99999"),
        ("runs/run/steps/-1", 400, "Invalid value for 'step'"),
        ("runs/run/steps/1e3", 400, "Invalid value for 'step'"),
        ("runs/run/episodes?limit=5000", 400, "at most 1000"),
        ("runs/run/episodes?offset=99999999999999999", 400, "at most 15 digits"),
        ("runs/run/episodes?reward_min=nan", 400, "a number such as"),
        ("runs/run/episodes?reward_min=1e999", 400, "a number such as"),
        ("runs/run/episodes?sort=id", 400, "Allowed: num, -num"),
        ("runs/run/episodes?eval=2", 400, "Allowed: 0, 1"),
        ("runs/run/episodes?agnet=x", 400, "Unknown parameter 'agnet'"),
        ("runs/run/metrics?names=" + "a," * 501, 400, "ask for at most 500"),
        ("compare?a=run", 404, "no run ''"),
        ("runs/" + "%2e%2e%2f" * 3 + "etc/events", 404, "no run"),
        ("runs/%ff%00", 404, "no run"),
    ],
)
def test_what_cannot_be_answered_is_said_in_one_sentence(path: str, status: int, says: str, watched: Watched) -> None:
    answer = watched.client.get(f"/api/{path}")
    assert answer.status_code == status and says in answer.json()["detail"]


def test_odd_questions_are_never_our_fault(watched: Watched) -> None:
    """Whatever stands in a path or a query, the answer is no error of the server's."""
    rng, names = random.Random(0), ["step", "q", "reward_min", "limit", "sort", "group", "eval", "turns_max", "tool"]
    texts = [
        "",
        "0",
        "-0",
        "٣",
        "1_0",
        "0x1",
        "\x00",
        "🦆" * 30,
        "a" * 600,
        "' OR 1=1 --",
        "1" * 30,
        "inf",
        "%",
        "\ud7ff",
    ]
    for _ in range(150):
        given = {rng.choice(names): rng.choice(texts) for _ in range(2)}
        path = rng.choice(["episodes", "groups", "metrics", "episodes/" + quote(rng.choice(texts), safe="")])
        answer = watched.client.get(f"/api/runs/run/{path}", params=given)
        assert answer.status_code < 500 and isinstance(answer.json(), dict), (path, given, answer.text)


def test_who_has_not_the_key_sees_an_empty_page(watched: Watched) -> None:
    """The link's key becomes a cookie that scripts cannot read; nothing else lets in, pages of other sites least."""
    base = watched.link.partition("/?")[0]
    with httpx.Client(base_url=base) as stranger:
        page = stranger.get("/")
        assert page.status_code == 200 and "set-cookie" not in page.headers
        assert page.headers["content-security-policy"].startswith("default-src 'self'; base-uri 'none'")
        assert stranger.get("/?key=guess").headers.get("set-cookie") is None
        for headers in ({}, {"authorization": "Bearer guess"}, {"cookie": "ludus-watch-1=guess"}):
            answer = stranger.get("/api/runs", headers=headers)
            assert answer.status_code == 401 and "the link that `ludus watch` printed" in answer.json()["detail"]
        visit = stranger.get(watched.link.removeprefix(base).partition("#")[0])
        assert {"HttpOnly", "SameSite=strict"} <= {part.strip() for part in visit.headers["set-cookie"].split(";")}
        assert stranger.get("/api/runs").status_code == 200
        assert stranger.get("/api/runs", headers={"origin": "https://evil.example"}).status_code == 403
        assert stranger.get("/api/runs", headers={"host": "evil.example"}).status_code == 421
        assert stranger.post("/api/runs/run/branches", json={}).status_code == 501  # nothing here samples
    for name in ("app.js", "app.css", "icon.svg"):
        assert watched.client.get(f"/static/{name}").content == (STATIC / name).read_bytes()
    assert watched.client.get("/static/..%2fapp.py").status_code == 404
    assert watched.client.get("/static/nothing.js").status_code == 404


def test_who_watches_hears_of_new_steps_and_episodes(tmp_path: Path) -> None:
    """As events with ids, the first of which say how the run stands, since it may have ended after the page was asked
    for, and how many episodes there are; who comes back with the last one gets what it missed, once."""
    folder = write_run(tmp_path, num_steps=2)
    with RunStore.open(folder) as store, watching(folder) as watched:
        wait_until_read(watched)
        heard: list[tuple[str, Any, str]] = []
        is_listening = threading.Event()

        def listen(until: str, last: str = "") -> None:
            headers = {"last-event-id": last} if last else {}
            with watched.client.stream("GET", "/api/runs/run/events", headers=headers) as answer:
                is_listening.set()
                for event in EventSource(answer).iter_sse():
                    heard.append((event.event, json.loads(event.data), event.id))
                    if event.event == until:
                        return

        listen("episodes")
        total = watched.get("runs/run/episodes")["total"]
        assert [(kind, data) for kind, data, _ in heard] == [
            ("state", {"state": watched.get("runs/run")["state"]}),
            ("episodes", {"count": total}),
        ]
        overview: Any = watched.get("runs/run")
        assert overview["position"] == heard[-1][2]  # so a page knows whether it has missed something before
        assert overview["position"].startswith(f"{watched.get('runs/run/metrics')['num_lines']}.{total}.")
        heard.clear()
        store.add_metrics(5, {"rollout/reward": 0.25})
        thread = threading.Thread(target=listen, args=("step", "0.0.interrupted"))
        thread.start()
        thread.join(timeout=20)
        steps = [data["step"] for kind, data, _ in heard if kind == "step"]
        assert steps[:1] == [0]
        last = next(id_ for _, _, id_ in reversed(heard))
        heard.clear()
        watched.client.get("/api/runs/run/metrics")
        store.add_metrics(6, {"rollout/reward": 0.5, "broken": float("nan")})
        store.add_episode(episode_of(5000), step=6)
        listen("episodes", last)
        numbers = {data["step"]: data["metrics"] for kind, data, _ in heard if kind == "step"}
        assert numbers[6] == {"rollout/reward": 0.5} and any(
            kind == "episodes" and data["count"] for kind, data, _ in heard
        )


def test_steps_that_come_at_once_are_known_with_the_last_of_them(tmp_path: Path) -> None:
    """Whose connection breaks between two of them gets them again; who is told of steps that a resumed run gives up is
    told that they are void."""
    folder = write_run(tmp_path, num_steps=2)
    with RunStore.open(folder) as store, watching(folder) as watched:
        wait_until_read(watched)
        before: Any = watched.get("runs/run/metrics")["num_lines"]
        heard: list[tuple[str, str]] = []
        with watched.client.stream("GET", "/api/runs/run/events") as answer:
            for event in EventSource(answer).iter_sse():
                heard.append((event.event, event.id.partition(".")[0]))
                if event.event == "episodes":
                    with (folder / "metrics.jsonl").open("a") as file:
                        file.writelines(f'{{"step": {step}, "rollout/reward": 0.5}}\n' for step in (7, 8, 9))
                if event.event == "step" and event.id.startswith(f"{before + 3}."):
                    store.add_metrics(7, {RESUMED: 1.0})
                if event.event == "replaced":
                    break
    steps = [lines for kind, lines in heard if kind == "step"]
    assert steps[:3] == [str(before), str(before), str(before + 3)] and heard[-1] == ("replaced", str(before + 4))


def test_a_run_that_is_begun_again_in_its_folder_is_shown(tmp_path: Path) -> None:
    """The watcher does not go on with files that are gone; while there are none, it says so."""
    folder = write_run(tmp_path, num_steps=2)
    with watching(tmp_path) as watched:
        assert watched.get("runs/run/episodes/ep-1")["id"] == "ep-1"
        shutil.rmtree(folder)
        answer = watched.client.get("/api/runs/run")
        assert answer.status_code == 404 and "no run 'run'" in answer.json()["detail"]
        with RunStore.create(tmp_path, "run", "model: {path: x}\n") as store:
            store.add_episode(episode_of(7), step=0)
        wait_until_read(watched)
        assert [row["id"] for row in episodes(watched)["episodes"]] == ["ep-7"]


def test_runs_that_nobody_looks_at_any_more_are_closed(tmp_path: Path) -> None:
    """When another one is opened, and not while anybody listens to their events; who asks again has them again."""
    for name in ("a", "b", "c"):
        RunStore.create(tmp_path, name, "model: {path: x}\n").close()
    with closing(RunsFolder(tmp_path)) as folder:
        first, second = folder.run("a"), folder.run("b")
        for run in (first, second):
            run.used_at -= 3600
        second.position()
        folder.run("c")
        assert folder.run("b") is second and folder.run("a") is not first
        with pytest.raises(sqlite3.ProgrammingError):
            first.overview()
        assert folder.run("a").overview()["name"] == "a"


def test_reasons_that_are_not_read_yet_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Why episodes ended stands in their records, which are read one after the other: the page asks until all are."""
    monkeypatch.setattr(follow, "_READ_AT_ONCE", 0)
    with watching(write_run(tmp_path)) as watched:
        listed = watched.get("runs/run/episodes")["num_unread"]
        assert watched.get("runs/run/failures") == {"failures": [], "num_unread": listed}
        monkeypatch.undo()
        wait_for(lambda: watched.get("runs/run/failures")["num_unread"] == 0)
        assert sum(each["count"] for each in watched.get("runs/run/failures")["failures"])  # type: ignore[attr-defined]


def test_an_index_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the disk of temporary files is full: the page says why episodes are missing, and what to do."""

    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(EpisodeIndex, "read", full)
    with watching(write_run(tmp_path)) as watched:
        wait_for(lambda: bool(watched.get("runs/run")["damage"]))
        (said,) = watched.get("runs/run")["damage"]  # type: ignore[misc]
        assert "not all episodes are shown" in said and "disk is full" in said and "TMPDIR" in said
        assert watched.get("runs/run/episodes")["total"]
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with watching(tmp_path) as watched:
        answer = watched.client.get("/api/runs/run")
        assert answer.status_code == 500 and "set TMPDIR to another folder" in answer.json()["detail"]


def test_what_is_read_while_a_page_is_made_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page whose total lacks an episode says so, even if it was read before the page was finished."""
    monkeypatch.setattr(follow, "_READ_AT_ONCE", 0)
    with watching(write_run(tmp_path)) as watched:
        whole = watched.get("runs/run/episodes")
        assert whole["num_unread"] == whole["total"]
        rows = EpisodeIndex.rows

        def rows_and_read(self: EpisodeIndex, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
            found = rows(self, sql, values)
            if "GROUP BY outcome" in sql:  # the total has been counted
                monkeypatch.undo()
                wait_for(lambda: not self.num_unread)
            return found

        monkeypatch.setattr(EpisodeIndex, "rows", rows_and_read)
        page = watched.get("runs/run/episodes", agent="main")
        assert page["total"] == 0 and page["num_unread"] == whole["total"]


def test_a_run_that_is_damaged_shows_what_can_be_read(tmp_path: Path) -> None:
    """Each damage is named on the page; episodes, curves and pages beside it are there."""
    folder = write_run(tmp_path, num_steps=3)
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(b"no json\n")
    (folder / "config.yaml").write_bytes(b"# CRC-32 of the lines below: 00000000\nmodel: {}\n")
    db = sqlite3.connect(folder / "run.db")
    db.execute("UPDATE episodes SET record = x'00' WHERE id = 'ep-1'")
    db.commit()
    db.close()
    write_bytes = bytearray(path_of(folder, 3).read_bytes())
    write_bytes[-1] ^= 1
    path_of(folder, 3).write_bytes(write_bytes)
    with watching(folder) as watched:
        wait_for(lambda: "run.db is damaged" in str(watched.get("runs/run")["damage"]))
        wait_until_read(watched)
        assert episodes(watched, step=2, eval=0)["total"] == PER_STEP
        assert watched.client.get("/api/runs/run/episodes/ep-1").status_code == 404
        assert watched.get("runs/run/steps/3")["loss_of_tokens"] is None
        said = " ".join(watched.get("runs/run")["damage"])  # type: ignore[arg-type]
        for name in ("metrics.jsonl is damaged: 1 of its lines", "config.yaml is damaged", "run.db is damaged"):
            assert name in said
        assert "tokens/step-000003.bin is damaged" in said


def test_what_is_looked_at_is_not_changed(tmp_path: Path) -> None:
    """Every file of the folder holds what it held, and there are no others but SQLite's own."""
    folder = write_run(tmp_path, num_steps=2)
    before = {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with watching(folder) as watched:
        wait_until_read(watched)
        for path in ("health", "ledger", "metrics", "groups", "episodes/ep-1", "steps/1"):
            watched.get(f"runs/run/{path}")
    after = {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert {name: content for name, content in after.items() if not name.startswith("run.db-")} == before


def test_a_folder_without_runs_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no run in .*; name a run's folder"):
        check_watchable(tmp_path)
    with pytest.raises(UserError, match="is not the folder of a run"):
        check_watchable(tmp_path / "nowhere")
    later = RunsFolder(tmp_path / "later", is_expected=True)
    assert later.outlines() == []
    with pytest.raises(UserError, match="has not begun yet"):
        later.run("later")
