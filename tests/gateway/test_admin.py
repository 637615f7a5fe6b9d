"""Sessions over HTTP: who may do what, what rewards reach, how sessions end, what is recorded of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from ludus.engines.scripted import ScriptedEngine
from ludus.episodes.archive import Archive, MemoryArchive, RunArchive
from ludus.episodes.episodes import MAX_OPEN_SESSIONS, Episodes
from ludus.episodes.keys import SessionKeys
from ludus.episodes.outcome import Reported
from ludus.episodes.recorder import Recorder
from ludus.episodes.spec import SessionSpec
from ludus.errors import AgentError, BackendError
from ludus.gateway.app import GatewayOptions, build_app
from ludus.runs.store import RunStore
from ludus.text.chat import ChatText
from ludus.types import Episode

ADMIN = {"authorization": "Bearer the-admin-key-of-the-tests"}


class Route(NamedTuple):
    method: str
    path: str
    access: str


ROUTES = (
    Route("POST", "/sessions", "admin"),
    Route("GET", "/sessions", "admin"),
    Route("GET", "/sessions/{id}", "own"),
    Route("POST", "/sessions/{id}/rewards", "own"),
    Route("POST", "/sessions/{id}/end", "own"),
    Route("GET", "/sessions/{id}/export", "own"),
)
"""Of the administration, each with whose key it needs."""
ASK = {"messages": [{"role": "user", "content": "Guess."}]}


class Office:
    """A gateway with an administration, asked in process."""

    def __init__(self, text: ChatText, archive: Archive, *, opens: bool = False) -> None:
        self.now = 0.0
        keys = SessionKeys(clock=lambda: self.now)
        engine = ScriptedEngine(lambda call: "I say 7.", text.tokenizer)
        self.archive = archive
        self.episodes = Episodes(Recorder(engine, text), archive, keys=keys, idle_s=60)
        options = GatewayOptions(
            open_mode=self.episodes.open_for_key if opens else None,
            episodes=self.episodes,
            admin_key=ADMIN["authorization"].split()[1],
            max_body_bytes=10_000,
        )
        transport = httpx.ASGITransport(build_app(keys, options))
        self.http = httpx.AsyncClient(transport=transport, base_url="http://gateway")

    async def opened(self, **asked: Any) -> dict[str, Any]:
        answer = await self.http.post("/sessions", json=asked, headers=ADMIN)
        assert answer.status_code == 201, answer.text
        return dict(answer.json())

    async def ask(self, session: dict[str, Any], content: str = "Guess.") -> str:
        """The completion id of one answer, asked for at the session's URL with a key that means nothing."""
        body = {"messages": [{"role": "user", "content": content}]}
        url = session["base_url"].removeprefix("http://gateway") + "/chat/completions"
        answer = await self.http.post(url, json=body, headers={"authorization": "Bearer DUMMY"})
        assert answer.status_code == 200, answer.text
        return str(answer.json()["id"])

    async def post(self, path: str, body: Any, key: str | None = None) -> httpx.Response:
        headers = ADMIN if key is None else {"x-api-key": key}
        return await self.http.post(path, json=body, headers=headers)


Visit = Callable[[Office], Awaitable[None]]


@pytest.fixture
def visit(text: ChatText) -> Callable[..., None]:
    """Runs a coroutine with an office of its own."""

    def run(main: Visit, **options: Any) -> None:
        @asynccontextmanager
        async def office() -> AsyncIterator[Office]:
            one = Office(text, options.pop("archive", None) or MemoryArchive(), **options)
            async with one.http:
                yield one

        async def play() -> None:
            async with office() as one:
                await main(one)

        asyncio.run(play())

    return run


def code_of(answer: httpx.Response) -> tuple[int, str]:
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    return answer.status_code, answer.json()["error"]["code"]


def test_a_session_is_opened_used_rewarded_ended_and_exported(visit: Any) -> None:
    """The whole life of a session over HTTP, and the episode it becomes."""

    async def main(office: Office) -> None:
        opened = await office.opened(id="mine", agent="critic", group_id="g1", metadata={"user": "ann"})
        assert opened["base_url"] == f"http://gateway/s/{opened['key']}/v1"
        first, second = await office.ask(opened), await office.ask(opened, "Again.")
        answer = await office.post("/sessions/mine/rewards", {"reward": 0.25, "completion_id": first})
        assert answer.json()["rewards"] == {first: 0.25}
        await office.post("/sessions/mine/rewards", {"reward": 1})
        ended = await office.post("/sessions/mine/end", {"metrics": {"success": 1.0}})
        assert ended.json()["state"] == "ended" and ended.json()["outcome"] == "ok"
        episode = office.archive.find("mine")
        assert episode is not None
        assert episode.rewards == {first: 0.25, second: 1.0} and episode.reward == 1.25
        assert (episode.group_id, episode.metadata, episode.metrics) == ("g1", {"user": "ann"}, {"success": 1.0})
        assert {turn.agent for turn in episode.session.turns} == {"critic"}
        exported = (await office.http.get("/sessions/mine/export", headers=ADMIN)).json()
        rows = exported["interactions"]
        assert [row["completion_ids"] for row in rows] == [[first], [second]]
        assert [row["rewards"] for row in rows] == [[0.25], [1.0]]
        for row, turn in zip(rows, episode.session.turns, strict=True):
            assert row["token_ids"] == list(episode.session.path_ids(turn.node))
            trained = [token for token, is_in in zip(row["token_ids"], row["loss_mask"], strict=True) if is_in]
            assert trained == list(turn.sampled.token_ids)

    visit(main)


@pytest.mark.parametrize("prefix", ["chatcmpl-", "resp_", "msg_", "cmpl-"])
def test_a_turn_is_rewarded_by_the_id_of_any_protocol(visit: Any, prefix: str) -> None:
    """The completion id that an SDK of any protocol shows names the turn."""

    async def main(office: Office) -> None:
        opened = await office.opened()
        turn = await office.ask(opened)
        shown = prefix + turn.removeprefix("chatcmpl-")
        answer = await office.post(f"/sessions/{opened['id']}/rewards", {"reward": 2, "completion_id": shown})
        assert answer.json()["rewards"] == {turn: 2.0}

    visit(main)


def test_every_route_refuses_strangers_and_keeps_sessions_apart(visit: Any) -> None:
    """Of every route: without or with an unknown key 401; with another session's key 403, and the same 403 where the
    session does not exist; with the own key what concerns the session and nothing else.
    """

    async def main(office: Office) -> None:
        paths = (await office.http.get("/openapi.json")).json()["paths"]
        found = {(method.upper(), path) for path in paths if path.startswith("/sessions") for method in paths[path]}
        assert found == {(route.method, route.path) for route in ROUTES}
        mine, other = await office.opened(id="mine"), await office.opened(id="other")
        await office.ask(mine)
        for route in ROUTES:
            for key, session_id, expected in [
                (None, "mine", (401, "invalid_api_key")),
                ("nobody", "mine", (401, "invalid_api_key")),
                (mine["key"], "other", (403, "session_mismatch")),
                (mine["key"], "nothing", (403, "session_mismatch")),
                (other["key"], "mine", (403, "session_mismatch")),
            ]:
                if route.access == "admin" and expected[0] == 403:
                    expected = (403, "admin_required")
                path = route.path.replace("{id}", session_id)
                for headers in ({"x-api-key": key or ""}, {"authorization": f"Bearer {key or ''}"}):
                    answer = await office.http.request(route.method, path, headers=headers, content=b"{}")
                    assert code_of(answer) == expected, (route, key, answer.text)
                    # A message may repeat what was asked for, and tells nothing of who is there.
                    reply = await office.http.request(
                        route.method, path.replace(session_id, "nothing"), headers=headers, content=b"{}"
                    )
                    assert route.access == "admin" or expected[0] == 401 or reply.text == answer.text
            if route.access == "own" and route.method == "GET":
                for session_id in ("mine", "current"):
                    own = await office.http.get(
                        route.path.replace("{id}", session_id), headers={"x-api-key": mine["key"]}
                    )
                    assert own.status_code == 200 and "other" not in own.text
        assert await office.post("/sessions/nothing/end", {}) is not None
        assert code_of(await office.post("/sessions/nothing/end", {})) == (404, "session_not_found")
        assert code_of(await office.post("/sessions", {"id": "mine"})) == (409, "session_exists")

    visit(main)


def test_the_own_key_rewards_and_ends_also_after_the_end(visit: Any) -> None:
    """A session's key rewards it, ends it, and may still reward it and read it when it has ended."""

    async def main(office: Office) -> None:
        opened = await office.opened()
        turn = await office.ask(opened)
        for number, path in enumerate(("rewards", "end", "end", "rewards")):
            body = {"reward": number} if path == "rewards" else {}
            answer = await office.post(f"/sessions/current/{path}", body, opened["key"])
            assert answer.status_code == 200, answer.text
        assert answer.json()["rewards"] == {turn: 3.0}
        asked = await office.http.post("/v1/chat/completions", json=ASK, headers={"x-api-key": opened["key"]})
        assert code_of(asked) == (401, "invalid_api_key")

    visit(main)


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("rewards", {"reward": "1"}, (400, "invalid_value")),
        ("rewards", {"reward": True}, (400, "invalid_value")),
        ("rewards", {}, (400, "missing_required_parameter")),
        ("rewards", {"rewrad": 1}, (400, "unknown_parameter")),
        ("rewards", {"reward": 1, "completion_id": "chatcmpl-x"}, (404, "completion_not_found")),
        ("end", {"outcome": "great"}, (400, "invalid_value")),
        ("end", {"metrics": {"success": None}}, (400, "invalid_value")),
        ("end", [], (400, "invalid_json")),
    ],
)
def test_wrong_bodies_are_typed_400s(visit: Any, path: str, body: Any, expected: tuple[int, str]) -> None:
    """What cannot be is refused by name, and changes nothing."""

    async def main(office: Office) -> None:
        opened = await office.opened()
        await office.ask(opened)
        assert code_of(await office.post(f"/sessions/{opened['id']}/{path}", body)) == expected
        view = (await office.http.get(f"/sessions/{opened['id']}", headers=ADMIN)).json()
        assert (view["state"], view["rewards"]) == ("open", {})

    visit(main)


def test_bodies_and_nesting_are_bounded(visit: Any) -> None:
    """413 and 400, each with its code, on the routes of models and on those of administration."""

    async def main(office: Office) -> None:
        opened = await office.opened()
        deep = b'{"metadata": ' + b'{"a":' * 300 + b"1" + b"}" * 301
        for path, headers in (("/v1/chat/completions", {"x-api-key": opened["key"]}), ("/sessions", ADMIN)):
            large = await office.http.post(path, content=b" " * 10_001, headers=headers)
            assert code_of(large) == (413, "request_too_large")
            assert code_of(await office.http.post(path, content=deep, headers=headers)) == (400, "invalid_json")

    visit(main)


def test_limits_of_a_session_are_typed_400s_that_no_sdk_retries(visit: Any) -> None:
    """Turns, tokens and seconds; the episode is then truncated and keeps its reward."""

    async def main(office: Office) -> None:
        for limit, code in (
            ({"max_turns": 1}, "turn_limit"),
            ({"max_tokens": 3}, "token_limit"),
            ({"max_seconds": 1e-9}, "deadline"),
        ):
            opened = await office.opened(**limit)
            if code != "deadline":
                await office.ask(opened)
            url = opened["base_url"].removeprefix("http://gateway") + "/chat/completions"
            answer = await office.http.post(url, json=ASK)
            assert code_of(answer) == (400, code)
            assert answer.headers["x-should-retry"] == "false"
            if code != "deadline":
                await office.post(f"/sessions/{opened['id']}/rewards", {"reward": 1})
                ended = await office.post(f"/sessions/{opened['id']}/end", {})
                assert ended.json()["outcome"] == "truncated"

    visit(main)


def test_idle_sessions_end_and_their_record_is_kept(visit: Any) -> None:
    """After a minute without requests a session ends: as a timeout, or as truncated if it has a reward."""

    async def main(office: Office) -> None:
        idle, rewarded, used = [await office.opened() for _ in range(3)]
        for session in (idle, rewarded, used):
            await office.ask(session)
        await office.post(f"/sessions/{rewarded['id']}/rewards", {"reward": 1})
        office.now = 50.0
        await office.ask(used)
        office.now = 70.0
        await office.episodes.expire()
        states = []
        for session in (idle, rewarded, used):
            view = (await office.http.get(f"/sessions/{session['id']}", headers=ADMIN)).json()
            states.append((view["state"], view["outcome"], view["num_turns"]))
        assert states == [("ended", "timeout", 1), ("ended", "truncated", 1), ("open", None, 2)]
        assert (await office.post(f"/sessions/{idle['id']}/rewards", {"reward": 1})).json()["outcome"] == "truncated"

    visit(main)


def test_sessions_opened_by_unknown_keys(visit: Any) -> None:
    """A key of one's own opens a session, keeps it, and may reward and end it; requests without one are sessions by
    themselves; ended ones make room for new ones under the same key.
    """

    async def main(office: Office) -> None:
        mine = {"authorization": "Bearer ann"}
        for headers in (mine, {"x-api-key": "ann"}, {}, {}):
            assert (await office.http.post("/v1/chat/completions", json=ASK, headers=headers)).status_code == 200
        listed = (await office.http.get("/sessions", headers=ADMIN)).json()["sessions"]
        assert sorted(one["num_turns"] for one in listed) == [1, 1, 2]
        assert (
            await office.http.post("/sessions/current/rewards", json={"reward": 1}, headers=mine)
        ).status_code == 200
        ended = (await office.http.post("/sessions/current/end", json={}, headers=mine)).json()
        assert (ended["outcome"], len(ended["rewards"])) == ("ok", 2)  # one question, asked twice: two leaves
        await office.http.post("/v1/chat/completions", json=ASK, headers=mine)
        again = (await office.http.get("/sessions/current", headers=mine)).json()
        assert again["id"] != ended["id"] and again["num_turns"] == 1
        assert office.archive.find(ended["id"]) is not None

    visit(main, opens=True)


def test_sessions_opened_by_unknown_keys_are_bounded(visit: Any) -> None:
    """Beyond the bound the longest unused session makes room and is ended."""

    async def main(office: Office) -> None:
        for number in range(MAX_OPEN_SESSIONS + 3):
            office.now = float(number) / 1e6
            office.episodes.open_for_key(f"key-{number}").used_at = office.now
        assert len(office.episodes.open_sessions) == MAX_OPEN_SESSIONS
        assert office.episodes.by_key("key-0") is None and office.episodes.by_key("key-3") is not None

    visit(main, opens=True)


def test_turns_and_rewards_of_open_sessions_outlive_the_process(
    visit: Any, text: ChatText, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a gateway that dies had acknowledged is in the run when it is opened again."""
    store = RunStore.create(tmp_path, "run", "")

    async def main(office: Office) -> None:
        opened = await office.opened(id="open", group_id="g", metadata={"a": 1})
        turn = await office.ask(opened)
        await office.post("/sessions/open/rewards", {"reward": 0.5})
        ended = await office.opened(id="ended")
        await office.ask(ended)
        await office.post("/sessions/ended/end", {})
        await office.post("/sessions/ended/rewards", {"reward": 3})
        assert store.episode("ended").reward == 3.0
        assert store.episode_rows()[0]["reward"] == 3.0
        assert turn

    visit(main, archive=RunArchive(store))
    store.close()  # as the kernel closes what a killed process had open
    with RunStore.open(tmp_path / "run") as run:
        episode = run.episode("open")
    assert (episode.outcome.kind, episode.reward, episode.metadata) == ("cancelled", 0.5, {"a": 1})
    assert len(episode.session.turns) == 1


def test_a_session_without_a_turn_failed(text: ChatText) -> None:
    """Nobody asked anything: the episode says so, whatever its owner says."""

    async def main() -> None:
        office = Office(text, MemoryArchive())
        held, _ = await office.episodes.open_new(SessionSpec(id="empty"))
        await office.episodes.end(held, Reported("ok"))
        episode = office.archive.find("empty")
        assert episode is not None and episode.outcome.kind == "failed"
        with pytest.raises(AgentError):
            office.episodes.reward("empty", 1.0)

    asyncio.run(main())


class Stubborn(MemoryArchive):
    """Refuses the first session it is to keep, as a full disk does."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[str] = []
        self.is_full = True

    def keep(self, episode: Episode, spec: SessionSpec) -> None:
        if self.is_full:
            raise BackendError("the disk is full")
        self.kept.append(episode.id)
        super().keep(episode, spec)


def test_a_session_that_cannot_be_kept_is_there_still(visit: Any) -> None:
    """A full disk is a 500 that may be tried again; when there is room the session is kept, once."""
    archive = Stubborn()

    async def main(office: Office) -> None:
        opened = await office.opened(id="mine")
        await office.ask(opened)
        assert code_of(await office.post("/sessions/mine/end", {})) == (500, "backend_error")
        archive.is_full = False
        for _ in range(2):
            assert (await office.post("/sessions/mine/end", {})).status_code == 200
        await office.episodes.aclose("over")
        assert archive.kept == ["mine"]

    visit(main, archive=archive)
