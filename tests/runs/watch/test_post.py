"""What the page has done, with a sampler that answers at once: branches, choices, chats, and who may ask for them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from httpx_sse import EventSource

from ludus.errors import AgentError, BackendError
from ludus.runs.store import RunStore
from ludus.runs.watch.branches import answer_json
from ludus.runs.watch.question import Json, Question
from tests.runs.conftest import episode_of
from tests.runs.watch.conftest import Watched, wait_for, wait_until_read, watching, write_run


class Scripted:
    """Keeps what it is asked, and an episode of each answer, as the real one does."""

    elsewhere = {"big/one": "http://127.0.0.1:9/v1"}  # noqa: RUF012

    def __init__(self) -> None:
        self.asked: list[Question] = []
        self.is_closed = False
        self.fault: Exception | None = None
        self.may_answer = True
        self.fails_late: set[str] = set()
        """Sessions that break off after the others have answered."""
        self._store: RunStore | None = None
        self._num_answered = 0

    async def answer(self, run: Path, question: Question) -> AsyncIterator[Json]:
        self.asked.append(question)
        if self.fault is not None:
            raise self.fault
        yield {"delta": "gue"}
        while not self.may_answer:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        if question.session in self.fails_late:
            while self._num_answered == 0:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            raise BackendError("there is no memory")
        if self._store is None:
            self._store = RunStore.create(run, "branches", "model: {path: nowhere}\n")
        made = episode_of(len(self.asked), num_turns=2, reward=None)
        episode = replace(
            made, id=question.session, group_id=question.group, task_id=question.kind, metadata=question.metadata
        )
        self._store.add_episode(episode)
        yield {"delta": "ss"}
        yield {"done": True, **answer_json(episode, episode.session.turns[-1], None)}
        self._num_answered += 1

    def close(self) -> None:
        self.is_closed = True
        if self._store is not None:
            self._store.close()


@contextmanager
def open_page(root: Path) -> Iterator[tuple[Watched, Scripted]]:
    write_run(root, num_steps=2)
    for name in ("step-000001", "step-000002"):
        (root / "run" / "checkpoints" / name).mkdir()
    (root / "run" / "checkpoints" / "step-000002" / "progress.json").write_text("{}")
    sampler = Scripted()
    with watching(root / "run", sampler=sampler) as watched:
        wait_until_read(watched)
        yield watched, sampler
    assert sampler.is_closed


def post(watched: Watched, path: str, **body: Any) -> Any:
    answer = watched.client.post(f"/api/runs/run/{path}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def a_turn(watched: Watched) -> dict[str, str]:
    episode: Any = watched.get("runs/run/episodes/ep-3")
    return {"episode": "ep-3", "turn": episode["turns"][-1]["id"]}


def test_a_branch_is_seen_while_it_grows_and_kept_when_it_has(tmp_path: Path) -> None:
    """The newest first, each with what was changed; what is chosen is marked, and may be unmarked."""
    with open_page(tmp_path) as (watched, sampler):
        run: Any = watched.get("runs/run")
        assert run["can_sample"] and [each["name"] for each in run["models"]] == ["base", "step-000002", "big/one"]
        assert run["models"][-1]["served_by"] == sampler.elsewhere["big/one"]
        assert "checkpoint.keep" in run["models_note"]
        place, sampler.may_answer = a_turn(watched), False
        edit = {"message_index": 1, "content": "Guess 3."}
        branch = post(watched, "branches", **place, n=2, model="step-000002", edit=edit)["branch"]
        wait_for(lambda: [each["text"] for each in seen(watched, branch)["samples"]] == ["gue", "gue"])
        assert seen(watched, branch)["state"] == "running"
        refused = watched.client.post(f"/api/runs/run/branches/{branch}/chosen", json={"sample": 0, "chosen": True})
        assert refused.status_code == 404 and "not finished" in refused.json()["detail"]
        sampler.may_answer = True
        wait_for(lambda: seen(watched, branch)["state"] == "finished")
        found = seen(watched, branch)
        assert found["from"] == place and found["edit"] == edit and found["model"] == "step-000002"
        assert len(found["samples"]) == 2 and found["samples"][0]["tokens"][-1]["mask"] is None
        assert sampler.asked[0].past is not None and sampler.asked[0].past.turn == place["turn"]
        post(watched, f"branches/{branch}/chosen", sample=1, chosen=True)
        assert [each["chosen"] for each in seen(watched, branch)["samples"]] == [False, True]
        post(watched, f"branches/{branch}/chosen", sample=1, chosen=False)
        assert found["served_by"] is None
        second = post(watched, "branches", **place, n=1, model="big/one")["branch"]
        wait_for(lambda: seen(watched, second)["state"] == "finished")
        listed: Any = watched.get("runs/run/branches")["branches"]
        assert [each["id"] for each in listed] == [second, branch]
        assert [each["served_by"] for each in listed] == [sampler.elsewhere["big/one"], None]
        assert not any(sample["chosen"] or sample["tokens"] for each in listed for sample in each["samples"])
        assert [each["id"] for each in watched.get("runs")["runs"]] == ["run"]  # type: ignore[index, attr-defined]
    with watching(tmp_path) as watched:
        assert [each["id"] for each in watched.get("runs")["runs"]] == ["run"]  # type: ignore[index, attr-defined]
        assert len(watched.get("runs/run/branches")["branches"]) == 2  # type: ignore[arg-type]
        assert watched.client.post("/api/runs/run/chat", json={}).status_code == 501


def seen(watched: Watched, branch: str) -> Any:
    return watched.get(f"runs/run/branches/{branch}")


def test_a_branch_that_cannot_be_says_why(tmp_path: Path) -> None:
    with open_page(tmp_path) as (watched, sampler):
        sampler.fault = BackendError("there is no memory")
        branch = post(watched, "branches", **a_turn(watched), model="base")["branch"]
        wait_for(lambda: seen(watched, branch)["state"] == "failed")
        assert seen(watched, branch)["error"] == "there is no memory" and len(sampler.asked) <= 4


def test_an_answer_is_chosen_where_it_is_shown(tmp_path: Path) -> None:
    """Also where the one before it did not come, and once another process shows those that did."""
    with open_page(tmp_path) as (watched, sampler):
        sampler.may_answer = False
        branch = post(watched, "branches", **a_turn(watched), n=2, model="base")["branch"]
        wait_for(lambda: [each["text"] for each in seen(watched, branch)["samples"]] == ["gue", "gue"])
        sampler.fails_late, sampler.may_answer = {f"{branch}-00"}, True
        wait_for(lambda: seen(watched, branch)["state"] == "failed")
        found = seen(watched, branch)["samples"]
        assert [each.get("episode") for each in found] == [None, f"{branch}-01"]
        path = f"/api/runs/run/branches/{branch}/chosen"
        assert watched.client.post(path, json={"sample": 0, "chosen": True}).status_code == 404
        post(watched, f"branches/{branch}/chosen", sample=1, chosen=True)
        assert [each["chosen"] for each in seen(watched, branch)["samples"]] == [False, True]
        listed: Any = watched.get("runs/run/branches")["branches"]
        assert [each["chosen"] for each in listed[0]["samples"]] == [False, True]
        assert (tmp_path / "run" / "branches" / "chosen.json").read_text() == f'["{branch}-01"]\n'
    with watching(tmp_path / "run", sampler=Scripted()) as watched:
        assert [each["episode"] for each in seen(watched, branch)["samples"]] == [f"{branch}-01"]
        post(watched, f"branches/{branch}/chosen", sample=0, chosen=False)
        assert [each["chosen"] for each in seen(watched, branch)["samples"]] == [False]


def test_the_messages_of_a_turn_are_all_that_the_model_was_told(tmp_path: Path) -> None:
    """In the order by which an edit counts them."""
    with open_page(tmp_path) as (watched, _):
        place = a_turn(watched)
        told: Any = watched.get("runs/run/episodes/{episode}/turns/{turn}/messages".format(**place))
        with RunStore.look(tmp_path / "run") as store:
            turn = store.episode("ep-3").session.turns[-1]
        assert [each["content"] for each in told["messages"]] == [each.content for each in turn.messages]


def test_two_models_talk_side_by_side(tmp_path: Path) -> None:
    """As events, each with its model's name, the last with its tokens; what is wrong with one ends that one."""
    with open_page(tmp_path) as (watched, sampler):
        body = {"models": ["base", "step-000002"], "messages": [{"role": "user", "content": "Hi"}], "chat": "c1"}
        body["temperature"] = 0.0

        def talk() -> list[Json]:
            with watched.client.stream("POST", "/api/runs/run/chat", json=body, timeout=30) as answer:
                assert answer.headers["content-type"].startswith("text/event-stream")
                return [json.loads(event.data) for event in EventSource(answer).iter_sse()]

        events = talk()
        for name in body["models"]:
            own = [event for event in events if event["model"] == name]
            assert [event.get("delta") for event in own] == ["gue", "ss", None]
            assert own[-1]["done"] and own[-1]["tokens"]
        assert {each.session for each in sampler.asked} == {"chat-c1-base", "chat-c1-step-000002"}
        assert {each.temperature for each in sampler.asked} == {0.0}
        assert watched.get("runs/run/branches") == {"branches": []}
        sampler.fault = AgentError("the context is full")
        assert [(event["done"], event["detail"]) for event in talk()] == [(True, "the context is full")] * 2


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("branches", {"model": "step-000001"}, 404, "this run has base, step-000002"),
        ("branches", {"n": 65}, 400, "less than or equal to 64"),
        ("branches", {"n": 0}, 400, "greater than or equal to 1"),
        ("branches", {"turn": "nothing"}, 404, "no turn 'nothing'"),
        ("branches", {"episode": "nothing"}, 404, "no episode 'nothing'"),
        ("branches", {"edit": {"message_index": 99, "content": ""}}, 400, "message 99"),
        ("branches", {"models": "x"}, 400, "Did you mean 'model'?"),
        ("branches/none/chosen", None, 404, "no answer 0"),
        ("chat", {"models": ["a", "b", "c"]}, 400, "at most 2"),
        ("chat", {"messages": []}, 400, "at least 1"),
        ("chat", {"chat": "../x"}, 400, "pattern"),
        ("episodes", {}, 404, "no such route"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_one_sentence(
    path: str, body: dict[str, Any] | None, status: int, says: str, tmp_path: Path
) -> None:
    with open_page(tmp_path) as (watched, sampler):
        if path == "branches":
            body = {**a_turn(watched), "model": "base", **(body or {})}
        elif path == "chat":
            body = {"models": ["base"], "messages": [{"role": "user", "content": "x"}], **(body or {})}
        answer = watched.client.post(f"/api/runs/run/{path}", json=body or {"sample": 0, "chosen": True})
        assert answer.status_code == status and says in answer.json()["detail"], answer.text
        assert sampler.asked == []


def test_nobody_but_the_page_has_anything_done(tmp_path: Path) -> None:
    """Not without the key, not from another site's page, not as a form."""
    with open_page(tmp_path) as (watched, sampler):
        body = {"models": ["base"], "messages": [{"role": "user", "content": "x"}]}
        ask, route = watched.client.post, "/api/runs/run/chat"
        assert ask(route, json=body, headers={"authorization": "Bearer wrong"}).status_code == 401
        assert ask(route, json=body, headers={"origin": "https://evil.example"}).status_code == 403
        assert ask(route, json=body, headers={"host": "evil.example"}).status_code == 421
        assert ask("/api/runs/run/chat", content=b"x" * (2**22 + 1)).status_code == 413
        assert sampler.asked == []
