"""Names that lead elsewhere, wherever a server or a setting takes one: what lies outside is not read or changed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pytest
from starlette.types import ASGIApp

from ludus.cluster.registry import Registry
from ludus.cluster.serve.app import Api
from ludus.cluster.serve.jobs import Jobs
from ludus.cluster.serve.store import JobStore
from ludus.config import Config
from ludus.engines.scripted import ScriptedEngine
from ludus.engines.serving.app import EngineApi
from ludus.engines.serving.weight_receiver import WeightReceiver
from ludus.episodes.archive import RunArchive
from ludus.episodes.episodes import Episodes
from ludus.episodes.recorder import Recorder
from ludus.errors import LudusError
from ludus.gateway.app import GatewayOptions, build_app
from ludus.http.keys import digest
from ludus.runs.store import RunStore
from ludus.runs.watch.app import watch_app
from ludus.runs.watch.folder import RunsFolder
from ludus.text.chat import ChatText
from tests.cluster.serve.scripted import ScriptedWorkshop
from tests.runs.conftest import episode_of

KEY = "the-key-of-who-tries-names"
MINE = "a secret that lies outside"
# As they stand in a path; a query and a body get what they mean.
NAMES = {
    "a step up": "..",
    "steps up": "../../outside",
    "steps up behind a name": "run/../../outside",
    "steps up, slashes escaped": "..%2f..%2foutside",
    "steps up, dots escaped": "%2e%2e/%2e%2e/outside",
    "steps up, escaped twice": "%252e%252e%252foutside",
    "steps up, in overlong UTF-8": "%c0%ae%c0%ae/%c0%ae%c0%ae/outside",
    "steps up, in wide letters": quote("．．/outside"),
    "steps up, with backslashes": "..%5c..%5coutside",
    "an absolute path": "{outside}",
    "an absolute path, escaped": "{outside_escaped}",
    "a home": "~root",
    "a folder of this process": "%2fproc%2fself%2fcwd%2f..%2foutside",
    "a byte of nothing": "run%00/../../outside",
    "a line of its own": "run%0d%0aset-cookie:%20a=b",
    "the folders of a run's address": "..~..~outside",
    "a name without end": "a" * 5000,
    "nothing": "",
}
ROUTES = {
    "the watcher": (
        "GET /static/{}",
        "GET /api/runs/{}",
        "GET /api/runs/run/episodes/{}",
        "GET /api/compare?a={}&b={}",
    ),
    "the gateway": ("GET /s/{}/v1/models", "GET /sessions/{}", "GET /v1/models/{}", "POST /sessions id"),
    "an engine": ("PUT /weights/{}", "POST /weights/{}"),
    "training as a service": (
        *(
            "GET /api/v1/jobs/{}",
            "GET /api/v1/models/{}/x",
            "GET /m/{}/x/v1/models",
            "POST /api/v1/models?load=false name",
        ),
        "POST /api/v1/models?load=false project",
    ),
    "a run's head": ("GET /config?role={}&index=0", "POST /roles/{}/0", "POST /serve/{}/take", "GET /serve/rollout/{}"),
}


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A run beside the folder that is served, with a secret in every file."""
    folder = tmp_path / "outside"
    with RunStore.create(tmp_path, "outside", f"name: outside\n# {MINE}\n") as store:
        store.add_episode(episode_of(1, kind="failed", metadata={"mine": MINE}), step=1)
    for name in ("metrics.jsonl", "index.html", "model.safetensors"):
        (folder / name).write_text(json.dumps({"step": 1, MINE: 1.0}))
    return folder


@pytest.fixture
def applications(tmp_path: Path, tokenizer_folder: Path, outside: Path) -> Iterator[dict[str, ASGIApp]]:
    del outside
    root, text = tmp_path / "root", ChatText.load(tokenizer_folder)
    engine = ScriptedEngine(["7"] * 1000, text.tokenizer)
    receiver = WeightReceiver(engine, lambda files: pytest.fail(f"{files} were read"), scratch=tmp_path)
    registry, workshop = Registry("name: here\n"), ScriptedWorkshop()
    registry.key = KEY
    with RunStore.create(root, "run", "name: run\n") as store, JobStore(tmp_path / "serve") as jobs:
        store.add_episode(episode_of(2), step=1)
        episodes = Episodes(Recorder(engine, text), RunArchive(store))
        runs = RunsFolder(root)
        yield {
            "the watcher": watch_app(runs, KEY),
            "the gateway": build_app(episodes.keys, GatewayOptions(episodes=episodes, admin_key=KEY)),
            "an engine": EngineApi(engine, text.tokenizer, receiver, model="tiny", key_digest=digest(KEY)).build(),
            "training as a service": Api(Jobs(jobs, workshop), workshop, digest(KEY)).build(),  # type: ignore[arg-type]
            "a run's head": registry._app(),
        }
        runs.close()


def ask(app: ASGIApp, method: str, raw: str, body: bytes) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """As it stands: no client in between that would tidy the path up."""
    path, _, query = raw.partition("?")
    headers = [(b"authorization", f"Bearer {KEY}".encode()), (b"content-type", b"application/json"), (b"host", b"h")]
    scope: dict[str, Any] = {
        "type": "http",
        "http_version": "1.1",
        "scheme": "http",
        "method": method,
        "root_path": "",
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
        "asgi": {"version": "3.0"},
    }
    told: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        told.append(message)

    asyncio.run(asyncio.wait_for(app(scope, receive, send), 20))  # type: ignore[arg-type]
    return told[0]["status"], told[0]["headers"], b"".join(each.get("body", b"") for each in told)


def written(name: str, outside: Path) -> str:
    """As it stands in a path."""
    return NAMES[name].format(outside=outside, outside_escaped=quote(str(outside), safe=""))


def state(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("server", ROUTES)
def test_a_name_leads_nowhere_else(
    server: str, name: str, applications: dict[str, ASGIApp], outside: Path, tmp_path: Path
) -> None:
    """With the key: what such a name stands for is not there, or is a name and no more."""
    before, folders = state(outside), {path.name for path in tmp_path.iterdir()}
    part = written(name, outside)
    for route in ROUTES[server]:
        method, path, *field = route.split()
        body = json.dumps({**_OTHERS.get(path, {}), field[0]: unquote(part)}).encode() if field else b"{}"
        status, headers, said = ask(applications[server], method, path.format(part, part), body)
        assert status < 500 and not [each for each in headers if each[0] == b"set-cookie"], (route, status, said)
        assert MINE.encode() not in said, (route, said)
        assert field or status in (400, 401, 403, 404, 405, 501) or not unquote(part).strip("/."), (route, status, said)
    assert state(outside) == before and {path.name for path in tmp_path.iterdir()} == folders


_OTHERS = {"/api/v1/models?load=false": {"project": "p", "name": "n", "base_model": "b"}}


@pytest.mark.parametrize("name", [each for each in NAMES if each != "nothing"])
def test_a_run_is_named_by_a_name(name: str, tmp_path: Path) -> None:
    """A setting that would put its folder elsewhere is refused."""
    part = unquote(written(name, tmp_path))
    if name == "a name without end":
        with pytest.raises((LudusError, OSError)):
            RunStore.create(tmp_path, Config(name=part).name, "")
        return
    with pytest.raises(LudusError, match="must be a folder's name"):
        Config(name=part)
