"""What the gateway costs: the client, the stand-in of other gateways' engines, and a measurement of ours."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import httpx
import pytest

from ludus.checks.bench.gateway import ask, measure_gateway
from ludus.checks.bench.load import percentile, run
from ludus.checks.bench.pairs import Measured
from ludus.checks.bench.results import rows_of
from ludus.checks.bench.table import BENCHES
from ludus.checks.bench.workloads import GatewayWork, Phase, gateway_work
from ludus.errors import BackendError


@pytest.fixture
def work(tiny_model_folder: Path) -> GatewayWork:
    phases = (Phase(3, 0.05), Phase(1, 0.05), Phase(1, 0.05, stream=True), Phase(3, 0.05))
    return replace(gateway_work(tiny_model_folder, connections=3, seconds=0.1), phases=phases)


@pytest.fixture
def upstream(work: GatewayWork) -> Iterator[str]:
    process = subprocess.Popen([*work.upstream, work.reply], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_ours_is_measured_with_every_turn_in_the_record(work: GatewayWork) -> None:
    """Every figure is there; a request without a turn, or a turn that forks, would have been an error."""
    results = measure_gateway(work)
    assert {"requests_per_s", "ceiling_share", "engine_s"} <= {name for name, value in results.items() if value > 0}
    assert {"p50_s", "p99_s", "first_token_s", "crowd_p50_s", "crowd_p99_s"} <= set(results)


def test_the_client_asks_whole_sessions(work: GatewayWork, upstream: str) -> None:
    """Each phase says how many requests were answered, in how long, and when the first tokens of streams came."""
    host, port = upstream.removeprefix("http://").split(":")
    job = {**asdict(work), "host": host, "port": int(port), "paths": ["/v1/chat/completions"]}
    warm, _, stream, crowd = asyncio.run(run(job))
    assert warm["requests"] > 0 and crowd["requests"] / crowd["seconds"] > 0
    assert 0 < stream["first_token_p50_s"] <= stream["p99_s"] and crowd["p50_s"] <= crowd["p99_s"]


def test_another_answer_than_the_expected_one_ends_the_measurement(work: GatewayWork, upstream: str) -> None:
    """A gateway that answers fast and wrongly is not measured."""
    with pytest.raises(BackendError, match="not the answer that was asked for"):
        ask(replace(work, reply="something else"), upstream, ["/v1/chat/completions"])


def test_the_upstream_answers_like_a_chat_server(work: GatewayWork, upstream: str) -> None:
    """The same text at once and word by word, with the token ids and logprobs that some gateways record."""
    body = dict(work.bodies[0])
    whole = httpx.post(f"{upstream}/v1/chat/completions", json=body).json()["choices"][0]
    lines = httpx.post(f"{upstream}/v1/chat/completions", json={**body, "stream": True}).text.splitlines()
    events = [json.loads(line[6:])["choices"][0] for line in lines if line.startswith("data: {")]
    assert "".join(event["delta"].get("content", "") for event in events) == whole["message"]["content"] == work.reply
    assert len(whole["token_ids"]) == len(whole["logprobs"]["content"]) and lines[-2] == "data: [DONE]"


def test_rows_compare_rates_and_times() -> None:
    """A ratio above 1 is in our favour: more requests a second, fewer milliseconds."""
    ours = {"requests": 64, "requests_per_s": 3000.0, "ceiling_share": 0.3333}
    ours |= {"p50_s": 0.001, "p99_s": 0.002, "first_token_s": 0.001}
    peer = {"requests_per_s": 100.0, "p50_s": 0.01, "p99_s": 0.1, "first_token_s": 0.004}
    rows = rows_of(BENCHES["gateway"], Measured([ours], [peer]))
    assert [row["ratio"] for row in rows] == [30.0, 10.0, 50.0, 4.0]
    assert rows[0]["result"] == "requests/s, 64 at once" and rows[1]["ceiling_share"] is None
    assert rows[0]["ceiling_share"] == 0.3333 and rows[1]["ours"] == 1.0


def test_percentiles_are_values_that_were_measured() -> None:
    """Nearest rank: half of a hundred numbers is the fiftieth, 99 % the last but one."""
    values = [float(number) for number in range(1, 101)]
    assert (percentile(values, 50), percentile(values, 99), percentile([7.0], 99)) == (50.0, 99.0, 7.0)
