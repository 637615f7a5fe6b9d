"""The client of `ludus bench gateway`: `python load.py JOB.json`, in a separate process.

Knows: HTTP/1.1 over raw sockets, with prepared requests.  Knows not: Ludus; it needs only Python.
It sends the next request about 30 microseconds after a response is complete; a slower client would be the bottleneck.

A connection sends one request after the other. It replays sessions: all bodies in order to one path, then the same to
the next path. Prints one JSON object: for each of its `phases` the `requests`, `seconds`, and percentiles of the
latency.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import math
import re
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

_END_OF_HEAD = b"\r\n\r\n"
_LAST_CHUNK = b"0\r\n\r\n"
_CONTENT = re.compile(rb'"content": ?"[^"]')


class Phase:
    """A number of connections for a duration, and what they measured."""

    def __init__(self, connections: int, seconds: float, *, stream: bool) -> None:
        self.num_connections = connections
        self.stream = stream
        self.latencies_s: list[float] = []
        self.first_tokens_s: list[float] = []
        self.began_at = time.perf_counter()
        self.ends_at = self.began_at + seconds
        self.ended_at = self.began_at
        self.error: Exception | None = None

    def results(self) -> dict[str, float]:
        return {
            "requests": len(self.latencies_s),
            "seconds": self.ended_at - self.began_at,
            "p50_s": percentile(self.latencies_s, 50),
            "p99_s": percentile(self.latencies_s, 99),
            "first_token_p50_s": percentile(self.first_tokens_s, 50),
        }


class Connection(asyncio.Protocol):
    """One request in flight."""

    def __init__(self, job: dict[str, Any], paths: Iterator[str], phase: Phase) -> None:
        self.ended = asyncio.get_running_loop().create_future()
        self._bodies: Sequence[bytes] = [
            json.dumps({**body, "stream": True} if phase.stream else body).encode() for body in job["bodies"]
        ]
        self._head = "".join(f"{name}: {value}\r\n" for name, value in job["headers"].items())
        self._reply = job["reply"].encode()
        self._phase = phase
        self._requests = (request for path in paths for request in self._session(path))
        self._answer = bytearray()
        self._length: int | None = None
        self._sent_at = 0.0
        self._has_content = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._send()

    def data_received(self, data: bytes) -> None:
        self._answer += data
        if self._phase.stream and not self._has_content and _CONTENT.search(self._answer):
            self._has_content = True
            self._phase.first_tokens_s.append(time.perf_counter() - self._sent_at)
        if self._is_whole():
            self._phase.ended_at = time.perf_counter()
            self._phase.latencies_s.append(self._phase.ended_at - self._sent_at)
            self._check()
            self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer and self._phase.error is None:
            self._phase.error = exc or ConnectionError(f"closed in the middle of an answer: {bytes(self._answer)!r}")
        if not self.ended.done():
            self.ended.set_result(None)

    def _is_whole(self) -> bool:
        if self._length is None:
            end = self._answer.find(_END_OF_HEAD)
            if end < 0:
                return False
            length = re.search(rb"content-length: *(\d+)", bytes(self._answer[:end]).lower())
            self._length = end + len(_END_OF_HEAD) + int(length[1]) if length else 0
        # 0: chunked. No measured answer contains the bytes of the last chunk's end in its text.
        return len(self._answer) >= self._length if self._length else self._answer.endswith(_LAST_CHUNK)

    def _check(self) -> None:
        is_answer = self._answer.startswith(b"HTTP/1.1 200")
        if not is_answer or (self._reply not in self._answer if not self._phase.stream else not self._has_content):
            self._phase.error = ValueError(f"not the answer that was asked for: {bytes(self._answer).decode()}")
            self._transport.close()

    def _send(self) -> None:
        self._answer.clear()
        self._length, self._has_content = None, False
        request = next(self._requests, None)
        if request is None or time.perf_counter() >= self._phase.ends_at or self._phase.error is not None:
            self._transport.close()
            return
        self._sent_at = time.perf_counter()
        self._transport.write(request)

    def _session(self, path: str) -> Iterator[bytes]:
        for body in self._bodies:
            yield f"POST {path} HTTP/1.1\r\n{self._head}content-length: {len(body)}\r\n\r\n".encode() + body


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile; nan without values."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)] if ordered else math.nan


async def run(job: dict[str, Any]) -> list[dict[str, float]]:
    """The results of each phase of `job`, one phase after the other."""
    paths = iter(job["paths"]) if len(job["paths"]) > 1 else itertools.repeat(job["paths"][0])
    loop, results = asyncio.get_running_loop(), []
    for asked in job["phases"]:
        phase = Phase(asked["connections"], asked["seconds"], stream=asked["stream"])
        connections = [
            (await loop.create_connection(partial(Connection, job, paths, phase), job["host"], job["port"]))[1]
            for _ in range(phase.num_connections)
        ]
        await asyncio.gather(*(each.ended for each in connections))
        if phase.error is not None:
            raise phase.error
        results.append(phase.results())
    return results


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    gc.disable()
    sys.stdout.write(json.dumps({"phases": asyncio.run(run(job))}) + "\n")


if __name__ == "__main__":
    main()
