"""What the house does on a network: everything that listens is known, and wants a key of strangers; nothing that comes
from there is unpickled.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import httpx
import pytest
from starlette.routing import Mount, Route
from starlette.testclient import TestClient

from ludus.api.answers import answers_app
from ludus.api.sampler import RunSampler
from ludus.cli.proxy import RecordingProxy
from ludus.cluster.registry import Registry
from ludus.cluster.serve.app import Api
from ludus.cluster.serve.jobs import Jobs
from ludus.cluster.serve.store import JobStore
from ludus.engines.serving.app import EngineApi
from ludus.episodes.episodes import Episodes
from ludus.gateway.app import PROBES, GatewayOptions
from ludus.gateway.server import GatewayServer
from ludus.http.keys import digest
from ludus.runs.watch.app import watch_app
from ludus.runs.watch.folder import RunsFolder
from tests.cluster.serve.scripted import ScriptedWorkshop

ROOT = Path(__file__).parent.parent
PACKAGES = ("ludus", "ludus_vllm")
KEY = "the-key-of-the-house"

# Who makes a socket that others may connect to, and why that is no hole.
LISTENERS = {
    "ludus/http/server.py": "the one server: what wants no key is refused every address but loopback",
    "ludus/checks/bench/upstream.py": "127.0.0.1, while a bench runs: answers that are made up",
    "ludus/processes/address.py": "looks for a free port, and closes it",
    "ludus/trainer/broadcast.py": "asks the store of the ranks, and listens nowhere",
    "ludus/trainer/group.py": "the ranks of one trainer: loopback, unless scheduler.host names a network of their own",
}
_LISTENING = {
    *("create_server", "start_server", "create_unix_server", "start_unix_server", "listen", "TCPStore", "run_app"),
    *(
        "HTTPServer",
        "ThreadingHTTPServer",
        "TCPServer",
        "ThreadingTCPServer",
        "UDPServer",
        "make_server",
        "serve_forever",
    ),
}
_SERVERS = (
    "http.server",
    "socketserver",
    "wsgiref",
    "xmlrpc",
    "multiprocessing.connection",
    "multiprocessing.managers",
)
# Who may serve to other machines, because whoever has no key learns and changes nothing there: the tests below ask.
GUARDED = {
    "ludus/gateway/server.py": "sessions have keys, administration has one",
    "ludus/cluster/serve/server.py": "one key",
    "ludus/cluster/serving.py": "one key; none only on loopback",
    "ludus/cluster/registry.py": "the key of the run",
}
# Who unpickles, and where that comes from.
UNPICKLERS = {
    "ludus/processes/calls.py": "a pipe to a process that was started here",
    "ludus/processes/child.py": "a pipe from the process that started it",
    "ludus/processes/process.py": "a pipe to a process that was started here",
    "ludus/rollout/subproc.py": "a pipe to a process that was started here",
}
_PICKLING = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib", "_pickle"}
# torch's collectives of Python objects, which are pickled.
_OF_OBJECTS = {
    *("broadcast_object_list", "all_gather_object", "gather_object", "scatter_object_list"),
    *("send_object_list", "recv_object_list"),
}


@functools.cache
def trees() -> tuple[tuple[str, ast.Module], ...]:
    paths = (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")))
    return tuple((str(path.relative_to(ROOT)), ast.parse(path.read_text())) for path in paths)


def called(tree: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    """Calls by the last part of their name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name):
            yield node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id, node


def imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def option(call: ast.Call, name: str) -> ast.expr | None:
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


def test_everything_that_listens_is_known() -> None:
    """And each has a reason: another file that makes a server must be thought about here first."""
    found = {
        file
        for file, tree in trees()
        if any(name in _LISTENING for name, _ in called(tree))
        or any(name.startswith(_SERVERS) for name in imported(tree))
    }
    assert found == set(LISTENERS)


def test_only_one_server_chooses_its_address() -> None:
    """The other that is not torch's stays on loopback, in so many words."""
    tree = dict(trees())["ludus/checks/bench/upstream.py"]
    (call,) = (call for name, call in called(tree) if name == "create_server")
    assert "'127.0.0.1'" in ast.unparse(call)


def test_who_serves_to_other_machines_is_known() -> None:
    """Each is asked below what it tells a stranger."""
    found = {
        file
        for file, tree in trees()
        for name, call in called(tree)
        if name in ("HttpServer", "__init__") and option(call, "is_guarded")
    }
    assert found == set(GUARDED)


def strange_answers(app: Any, client: Any, headers: dict[str, str]) -> dict[str, int]:
    """What each route of an application answers to one who does not know the key."""
    answers = {}
    for route in app.routes:
        path = f"{route.path}/v1/models" if isinstance(route, Mount) else route.path
        path = re.sub(r"\{\w+(:\w+)?\}", "1", path)
        for method in sorted((route.methods or set()) - {"HEAD"}) if isinstance(route, Route) else ["GET"]:
            answers[f"{method} {path}"] = client.request(method, path, headers=headers).status_code
    return answers


STRANGERS: dict[str, dict[str, str]] = {
    "no key": {},
    "another key": {"authorization": "Bearer another"},
    "the key, not as a bearer": {"authorization": f"Basic {KEY}"},
    "an empty key": {"x-api-key": ""},
    "the key and a letter more": {"authorization": f"Bearer {KEY}x"},
    "a key in a cookie": {"cookie": f"authorization=Bearer {KEY}; ludus={KEY}"},
}


@pytest.fixture(params=STRANGERS.values(), ids=STRANGERS)
def headers(request: pytest.FixtureRequest) -> dict[str, str]:
    found: dict[str, str] = request.param
    return found


def test_a_stranger_is_told_nothing_by_the_server_of_training(tmp_path: Path, headers: dict[str, str]) -> None:
    """But that it is there, and which versions it speaks."""
    job_runner = ScriptedWorkshop()
    with JobStore(tmp_path) as store:
        app = Api(Jobs(store, job_runner), job_runner, digest(KEY)).build()
        answers = strange_answers(app, TestClient(app), headers)
    open_to_all = {path for path, status in answers.items() if status != 401}
    assert len(answers) > 10 and open_to_all == {"GET /", "GET /health", "GET /healthz", "GET /api"}


def test_a_stranger_is_told_nothing_by_an_engine(headers: dict[str, str]) -> None:
    """But that it is there."""
    engine = AsyncMock()  # asked for its health alone
    nobody: Any = None  # who is never asked
    app = EngineApi(engine, nobody, nobody, model="m", key_digest=digest(KEY)).build()
    answers = strange_answers(app, TestClient(app), headers)
    assert len(answers) > 10 and {path for path, status in answers.items() if status != 401} == {"GET /health"}
    assert [name for name, *_ in engine.mock_calls] == ["check"]


def test_a_stranger_is_told_nothing_by_a_run(headers: dict[str, str]) -> None:
    """Not even that there is one."""
    with Registry("name: run") as registry, httpx.Client(base_url=registry.url) as client:
        answers = strange_answers(registry._http.app, client, headers)
    assert len(answers) > 4 and set(answers.values()) == {401}


def test_a_stranger_is_told_nothing_by_the_gateway(headers: dict[str, str]) -> None:
    """Neither of sessions nor of their administration; which routes there are is no secret."""
    nobody: Any = None
    episodes = Episodes(nobody, nobody)
    gateway = GatewayServer(episodes.keys, GatewayOptions(episodes=episodes, admin_key=KEY))
    answers = strange_answers(gateway.app, TestClient(gateway.app), headers)
    open_to_all = {path for path, status in answers.items() if status != 401}
    probes = {f"GET {path.replace('{secret}', '1')}" for path in PROBES}  # the same for every secret, known or not
    assert len(answers) > 20 and open_to_all == {*probes, "GET /openapi.json"}


def test_a_stranger_is_told_nothing_by_a_watcher(tmp_path: Path, headers: dict[str, str]) -> None:
    """But the page, which is empty without what the key opens."""
    app = watch_app(RunsFolder(tmp_path, is_expected=True), KEY)
    answers = strange_answers(app, TestClient(app), headers)
    open_to_all = {path for path, status in answers.items() if status != 401}
    assert len(answers) >= 4 and open_to_all == {"GET /", "GET /static/1"}


def test_a_stranger_is_answered_by_no_model_of_a_run(headers: dict[str, str]) -> None:
    """By the process that asks them for the page; it listens on loopback alone."""
    app = answers_app(AsyncMock(spec=RunSampler), KEY)
    assert set(strange_answers(app, TestClient(app), headers).values()) == {401}


def test_a_stranger_is_told_nothing_by_the_recording_proxy(headers: dict[str, str]) -> None:
    """And nothing of what he sends is passed on."""
    app = RecordingProxy("http://nowhere.invalid/v1", KEY)._server.app
    answers = strange_answers(app, TestClient(app), headers)
    assert len(answers) == 2 and set(answers.values()) == {401}


def test_nothing_from_a_network_is_unpickled() -> None:
    """Who unpickles is known, and reads what a process of this machine wrote that it started, or that started it."""
    found = {file for file, tree in trees() if any(name.split(".")[0] in _PICKLING for name in imported(tree))}
    assert found == set(UNPICKLERS)


def test_files_of_tensors_and_settings_run_no_code() -> None:
    """Whoever loads them says so, because the libraries' own words for it once unpickled; YAML makes plain values."""
    for file, tree in trees():
        for name, call in called(tree):
            where = f"{file}:{call.lineno}"
            of = ast.unparse(call.func)
            if of == "torch.load":
                assert ast.unparse(option(call, "weights_only") or ast.Constant(None)) == "True", where
            if of in ("np.load", "numpy.load"):
                assert option(call, "allow_pickle") is None, where
            if of in ("yaml.load", "yaml.unsafe_load", "yaml.full_load"):
                assert of == "yaml.load" and ast.unparse(option(call, "Loader") or ast.Constant(None)) == "_Loader", (
                    where
                )
            assert name not in _OF_OBJECTS, where
