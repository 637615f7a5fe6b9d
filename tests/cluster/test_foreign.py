"""Whatever stands in the paths, queries and headers of a request to any server but the gateway: never a 500.

The gateway's own are in `tests/gateway/test_fuzz.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from starlette.types import ASGIApp, Receive, Scope, Send

from ludus.cluster.registry import Registry
from ludus.cluster.serve.app import Api
from ludus.cluster.serve.jobs import Jobs
from ludus.cluster.serve.store import JobStore
from ludus.engines.scripted import ScriptedEngine
from ludus.engines.serving.app import EngineApi
from ludus.engines.serving.weight_receiver import WeightReceiver
from ludus.http.keys import digest
from ludus.rollout.work_queue import WorkQueue
from ludus.text.tokenizer import Tokenizer
from tests.cluster.serve.scripted import ScriptedWorkshop
from tests.http.foreign import FOREIGN, HEADERS, NUMBERS

KEY = "the-key-of-the-servers-of-the-fuzz"
PATHS = {
    "engine": {
        "GET": "/health /v1/models /stats /is_paused",
        "POST": "/tokenize /inference/v1/generate /abort_requests /score /pause /resume /weights/{} /weights/3",
        "PUT": "/weights/{} /weights/9",
    },
    "registry": {
        "GET": "/config /config?role=engine&index={} /roles /serve/rollout/{}",
        "POST": "/roles/engine/{} /serve/rollout/take /serve/rollout/end /stop",
        "PUT": "/roles/engine/{}/beat /roles/engine/0/beat",
    },
    "serve": {
        "GET": "/api /api/v1/models /api/v1/jobs/{} /api/v1/jobs/{}/events /m/{}/x/v1/models /api/v1/models/a/b/jobs",
        "POST": "/api/v1/models?load={} /api/v1/models/a/{}/jobs /api/v1/jobs/{}/cancel",
    },
}
FUZZ = settings(
    max_examples=max(10, settings.default.max_examples // 10),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(scope="module")
def tokenizer(tokenizer_folder: Path) -> Tokenizer:
    return Tokenizer.load(tokenizer_folder)


@pytest.fixture
def applications(tmp_path: Path, tokenizer: Tokenizer) -> Iterator[dict[str, ASGIApp]]:
    """By the name of the server."""
    engine = ScriptedEngine(["7"] * 10_000, tokenizer)
    receiver = WeightReceiver(engine, lambda files: pytest.fail("no weights were sent"), scratch=tmp_path)
    registry = Registry("name: here\n")
    engine_key, rollout_key = registry.expect("engine", 0, 0, {}), registry.expect("rollout", 0, 0, {})
    registry.serve("rollout", WorkQueue().answer)
    store = JobStore(tmp_path / "serve")
    job_runner = ScriptedWorkshop()
    yield {
        "engine": EngineApi(engine, tokenizer, receiver, model="tiny", key_digest=digest(KEY)).build(),
        "registry": with_keys(registry._app(), engine_key, rollout_key),
        "serve": Api(Jobs(store, job_runner), job_runner, digest(KEY)).build(),  # type: ignore[arg-type]
    }


def with_keys(app: ASGIApp, bearer: str, other: str) -> ASGIApp:
    """As asked by one who has these keys."""
    keys = [(b"authorization", b"Bearer " + bearer.encode()), (b"x-api-key", other.encode())]

    async def keyed(scope: Scope, receive: Receive, send: Send) -> None:
        others = [header for header in scope["headers"] if header[0] not in dict(keys)]
        await app({**scope, "headers": [*others, *keys]}, receive, send)

    return keyed


def ask(app: ASGIApp, method: str, path: str, headers: list[tuple[bytes, bytes]], body: bytes) -> tuple[int, str]:
    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as http:
            return await http.request(method, path, headers=headers, content=body)

    answer = asyncio.run(asyncio.wait_for(send(), 20))
    return answer.status_code, answer.text


CASES = [
    (server, method, path) for server, paths in PATHS.items() for method in paths for path in paths[method].split()
]


@pytest.mark.parametrize(("server", "method", "path"), CASES)
def test_any_headers_queries_and_paths(server: str, method: str, path: str, applications: dict[str, ASGIApp]) -> None:
    """Every route, with the key; what is no number, or too long for one, is told so."""
    app = applications[server]
    names = st.sampled_from([name.encode() for name in HEADERS if name not in ("content-length", "transfer-encoding")])

    @FUZZ
    @example(foreign="9" * 5000, headers=[(b"last-event-id", b"9" * 5000)], query="")
    @example(foreign="²", headers=[(b"last-event-id", "²".encode("latin-1"))], query="index=²")
    @given(
        foreign=st.sampled_from(NUMBERS) | st.text(max_size=4),
        headers=st.lists(st.tuples(names, FOREIGN), max_size=3),
        query=st.text(max_size=6),
    )
    def fuzz(foreign: str, headers: list[tuple[bytes, bytes]], query: str) -> None:
        url = httpx.URL("http://here" + path.format(*["\0"] * path.count("{}")).replace("\0", "PART"))
        raw = str(url).replace("PART", httpx.QueryParams({"": foreign}).__str__()[1:])
        own = (b"authorization", f"Bearer {KEY}".encode())
        status, text = ask(app, method, raw, [own, *headers], b"{}")
        assert status < 500, (method, raw, headers, text)

    fuzz()


GENERATE = "/inference/v1/generate"
NUMBERS_OF_JSON = ("-1", "1" * 19, "1" * 401, "1" * 5000, "1e999", "NaN", "true", '"²"', "[]", "null", "0.5")


@pytest.mark.parametrize("number", NUMBERS_OF_JSON)
@pytest.mark.parametrize(
    ("server", "path", "body"),
    [
        ("engine", GENERATE, '{{"token_ids": [{0}]}}'),
        ("engine", GENERATE, '{{"token_ids": [1], "sampling_params": {{"logit_bias": {{"5": {0}}}}}}}'),
        *(
            ("engine", GENERATE, f'{{{{"token_ids": [1], "sampling_params": {{{{"{name}": {{0}}}}}}}}}}')
            for name in ("temperature", "seed", "top_k", "max_tokens", "logprobs", "frequency_penalty", "min_p")
        ),
        ("engine", "/score", '{{"token_ids": [1, {0}]}}'),
        ("registry", "/roles/engine/0", '{{"attempt": {0}, "url": "", "pid": {0}, "host": "", "info": {{}}}}'),
        ("registry", "/serve/rollout/take", '{{"index": {0}, "attempt": 0, "free": {0}, "has": [], "number": {0}}}'),
        ("registry", "/serve/rollout/take", "[" * 100_000),
    ],
)
def test_numbers_in_bodies(server: str, path: str, body: str, number: str, applications: dict[str, ASGIApp]) -> None:
    """Those too large for a float or a database, and those that are none."""
    headers = [(b"authorization", f"Bearer {KEY}".encode())]
    status, text = ask(applications[server], "POST", path, headers, body.format(number).encode())
    assert status < 500, (path, body, number, text)
