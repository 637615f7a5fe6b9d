"""What the gateway costs: scripted answers behind it, a lean client in front of it, real sockets, every turn recorded.

Knows: the gateway, the client's process, the engine's own times.  Knows not: peers, pairs.

    client (load.py, its own process) ── sockets ──▶ gateway ▶ recorder ▶ scripted answers (this process)

What the gateway adds is the client's time less the engine's. The ceiling is the same client against an application
that does nothing, on the same server.
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

# More than are played in the time of all phases.
NUM_SESSIONS = 8000


class TimedEngine(ScriptedEngine):
    """Scripted answers, and how long each call and its first token took."""

    def __init__(self, reply: str, text: ChatText) -> None:
        token_ids = text.tokenizer.encode(reply)  # once: what an engine does must not be measured
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
    """Requests a second of all connections, and what the gateway adds one at a time, in seconds.

    Raises BackendError if a request was not answered or a turn is not in the record.
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
    """What the client measured of sessions that are recorded as `ludus gateway` records them."""
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
    """What the client's process measured in each phase of `work`. Raises BackendError with its last lines."""
    address = urlsplit(base_url)
    job = {**asdict(work), "host": address.hostname, "port": address.port, "paths": paths}
    measured: list[dict[str, float]] = Runner("the gateway's client", work.client, job, "please report it").run()[
        "phases"
    ]
    return measured


def _check(sessions: Sequence[Session], *, num_requests: int) -> None:
    """Every request is a turn, and every turn goes on with the tokens of the one before."""
    stats = [session.stats() for session in sessions]
    num_turns, num_forks = sum(each.num_turns for each in stats), sum(sum(each.forks.values()) for each in stats)
    if num_turns != num_requests or num_forks:
        raise BackendError(f"{num_requests} requests became {num_turns} turns with {num_forks} forks; please report it")


def _ceiling(work: GatewayWork) -> float:
    """Requests a second that the client and the server manage with an application that reads a body and answers every
    request with the same bytes, as many as a chat answer has."""
    content = json.dumps({"reply": work.reply, "padding": "x" * 300}).encode()

    async def idle(scope: Scope, receive: Receive, send: Send) -> None:
        await Request(scope, receive).body()
        await Response(content, media_type="application/json")(scope, receive, send)

    server = GatewayServer(SessionKeys())
    server.app = idle
    with server:
        (crowd,) = ask(replace(work, phases=work.phases[-1:]), server.base_url, ["/"])
    return crowd["requests"] / crowd["seconds"]
