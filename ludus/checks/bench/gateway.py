"""Measures the overhead of the gateway, with scripted answers, a fast client, real sockets, and every turn recorded.

Knows: the gateway, the client's process, the engine's own times.  Knows not: peers, pairs.

    client (load.py, its own process) ── sockets ──▶ gateway ▶ recorder ▶ scripted answers (this process)

The overhead is the client's time minus the engine's. The ceiling is the same client with an application that does
nothing, on the same server.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ludus.checks.bench.pairs import Runner
from ludus.checks.bench.workloads import GatewayWork
from ludus.engines.base import OnTokens
from ludus.engines.scripted import ScriptedEngine
from ludus.episodes.keys import SessionKeys
from ludus.episodes.recorder import Recorder
from ludus.episodes.session import Session
from ludus.episodes.spec import SessionSpec
from ludus.errors import BackendError
from ludus.gateway.server import GatewayServer, calm_garbage_collection
from ludus.runs.journal import Journal
from ludus.text.chat import ChatText
from ludus.types import Call, Sampled, TokenChunk

# More than can be played within all phases.
NUM_SESSIONS = 8000


class TimedEngine(ScriptedEngine):
    """An engine with scripted answers that measures the time of each call and of its first token."""

    def __init__(self, reply: str, text: ChatText) -> None:
        token_ids = text.tokenizer.encode(reply)  # once, so that the engine's own work is not measured
        super().__init__(lambda _: token_ids, text.tokenizer)
        self.times_s: list[float] = []
        self.first_tokens_s: list[float] = []

    async def generate(self, call: Call, on_tokens: OnTokens | None = None) -> Sampled:
        began_at = time.perf_counter()
        arrived_at: list[float] = []

        def pass_on(chunk: TokenChunk) -> None:
            arrived_at.append(time.perf_counter())
            if on_tokens is not None:
                on_tokens(chunk)

        sampled = await super().generate(call, pass_on)
        self.times_s.append(time.perf_counter() - began_at)
        self.first_tokens_s.append(arrived_at[0] - began_at)
        return sampled


def measure_gateway(work: GatewayWork) -> dict[str, Any]:
    """Requests per second over all connections, and the overhead of single requests in seconds.

    Raises BackendError if a request was not answered or its turn was not recorded.
    """
    text = ChatText.load(Path(work.model))
    engine = TimedEngine(work.reply, text)
    with tempfile.TemporaryDirectory(prefix="ludus-bench-") as folder:
        warm, alone, stream, crowd = _played(work, Recorder(engine, text), Journal(Path(folder)))
    begin, middle = int(warm["requests"]), int(warm["requests"] + alone["requests"])
    end = middle + int(stream["requests"])
    engine_s = statistics.median(engine.times_s[begin:middle])
    requests_per_s = crowd["requests"] / crowd["seconds"]
    return {
        "requests": work.phases[-1].connections,
        "requests_per_s": requests_per_s,
        "p50_s": alone["p50_s"] - engine_s,
        "p99_s": alone["p99_s"] - engine_s,
        "first_token_s": stream["first_token_p50_s"] - statistics.median(engine.first_tokens_s[middle:end]),
        "crowd_p50_s": crowd["p50_s"],
        "crowd_p99_s": crowd["p99_s"],
        "engine_s": engine_s,
        "ceiling_share": requests_per_s / _ceiling(work),
    }


def _played(work: GatewayWork, recorder: Recorder, journal: Journal) -> Sequence[Mapping[str, float]]:
    """The client's measurements, with sessions recorded as by `ludus gateway`."""
    sessions = SessionKeys()
    recorded = [recorder.open(SessionSpec(f"session-{idx}"), sink=journal) for idx in range(NUM_SESSIONS)]
    calm_garbage_collection()
    with GatewayServer(sessions) as server:
        urls = [server.url_for(sessions.add(session)) for session in recorded]
        phases = ask(work, server.base_url, [f"{urlsplit(url).path}/chat/completions" for url in urls])
    journal.close()
    _check(recorded, num_requests=sum(int(phase["requests"]) for phase in phases))
    return phases


def ask(work: GatewayWork, base_url: str, paths: Sequence[str]) -> Sequence[Mapping[str, float]]:
    """The measurements of the client's process in each phase of `work`. Raises BackendError with its last lines."""
    address = urlsplit(base_url)
    job = {**asdict(work), "host": address.hostname, "port": address.port, "paths": paths}
    measured: list[dict[str, float]] = Runner("the gateway's client", work.client, job, "please report it").run()[
        "phases"
    ]
    return measured


def _check(sessions: Sequence[Session], *, num_requests: int) -> None:
    """Raises BackendError unless every request is a turn that extends the tokens of the turn before it."""
    stats = [session.stats() for session in sessions]
    num_turns, num_forks = sum(each.num_turns for each in stats), sum(sum(each.forks.values()) for each in stats)
    if num_turns != num_requests or num_forks:
        raise BackendError(f"{num_requests} requests became {num_turns} turns with {num_forks} forks; please report it")


def _ceiling(work: GatewayWork) -> float:
    """Requests per second of the client and the server with an application that reads the body and answers with
    constant bytes, as many as a chat answer has."""
    content = json.dumps({"reply": work.reply, "padding": "x" * 300}).encode()

    async def idle(scope: Scope, receive: Receive, send: Send) -> None:
        await Request(scope, receive).body()
        await Response(content, media_type="application/json")(scope, receive, send)

    server = GatewayServer(SessionKeys())
    server.app = idle
    with server:
        (crowd,) = ask(replace(work, phases=work.phases[-1:]), server.base_url, ["/"])
    return crowd["requests"] / crowd["seconds"]
