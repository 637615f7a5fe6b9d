"""The clients of `ludus bench gateway --soak`: `python soak_client.py JOB.json`, in a separate process.

Knows: the gateway's routes over httpx.  Knows not: how the gateway works, how it is measured.
Each session is opened, has some turns, streamed or not, of which clients leave some early, is rewarded and ended.
Prints one JSON object: the numbers of sessions and requests, the latencies, and those of many streams at once.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from ludus.checks.bench.load import percentile

_TURNS = 3
_LEFT_SHARE = 0.1
"""Share of the streams that their clients leave after the first piece."""


class Clients:
    """All clients, on one event loop."""

    def __init__(self, job: dict[str, Any], http: httpx.AsyncClient) -> None:
        self._job = job
        self._http = http
        self.latencies_s: list[float] = []
        self.num_left = 0

    async def session(self, number: int) -> None:
        """A session from its beginning to its end, which is the same in every soak with this seed."""
        rng = random.Random(f"{self._job['seed']}-{number}")
        opened = await self._post("/sessions", {"id": f"soak-{number}"}, self._job["admin_key"])
        path, key = httpx.URL(opened["base_url"]).path, opened["key"]
        messages: list[dict[str, str]] = []
        for turn in range(_TURNS):
            messages.append({"role": "user", "content": f"What lies on shelf {turn} of {number}?"})
            body = {"messages": messages, "max_tokens": 32}
            if rng.random() < 0.5:
                reply = (await self._post(f"{path}/chat/completions", body, key))["choices"][0]["message"]["content"]
            else:
                # never leave the first stream, as a session without a complete answer cannot be rewarded
                leaves = turn > 0 and rng.random() < _LEFT_SHARE
                reply = await self.stream(path, body, key, leaves=leaves)
            messages.append({"role": "assistant", "content": reply})
        await self._post(f"/sessions/soak-{number}/rewards", {"reward": 1.0}, key)
        await self._post(f"/sessions/soak-{number}/end", {}, key)

    async def stream(self, path: str, body: dict[str, Any], key: str, *, leaves: bool = False) -> str:
        """The text of an answer, or the part that had arrived when its client left."""
        began_at, said = time.perf_counter(), ""
        asked = {**body, "stream": True}
        async with self._http.stream("POST", f"{path}/chat/completions", json=asked, headers=_with(key)) as answer:
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                choices = json.loads(line.removeprefix("data: "))["choices"]
                said += (choices[0]["delta"].get("content") or "") if choices else ""
                if leaves and said:
                    self.num_left += 1
                    return said
        self.latencies_s.append(time.perf_counter() - began_at)
        return said

    async def _post(self, path: str, body: dict[str, Any], key: str) -> dict[str, Any]:
        began_at = time.perf_counter()
        answer = await self._http.post(path, json=body, headers=_with(key))
        answer.raise_for_status()
        self.latencies_s.append(time.perf_counter() - began_at)
        found: dict[str, Any] = answer.json()
        return found

    async def streams_at_once(self, count: int) -> list[float]:
        """The durations of `count` streams that are all open at the same time."""
        opened = [
            await self._post("/sessions", {"id": f"at-once-{idx}"}, self._job["admin_key"]) for idx in range(count)
        ]
        self.latencies_s.clear()
        body = {"messages": [{"role": "user", "content": "What lies on the shelves?"}], "max_tokens": 32}
        await asyncio.gather(*(self.stream(httpx.URL(each["base_url"]).path, body, each["key"]) for each in opened))
        return list(self.latencies_s)


def _with(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def run(job: dict[str, Any]) -> dict[str, float]:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
    async with httpx.AsyncClient(base_url=job["url"], limits=limits, timeout=120, trust_env=False) as http:
        clients, began_at = Clients(job, http), time.perf_counter()
        async with asyncio.TaskGroup() as running:  # a failure cancels all of them, and is raised
            for number in range(job["sessions"]):
                due = began_at + job["seconds"] * number / job["sessions"]
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                running.create_task(clients.session(number))
        found = {
            "sessions": job["sessions"],
            "requests": len(clients.latencies_s),
            "left": clients.num_left,
            "seconds": time.perf_counter() - began_at,
            "p50_s": percentile(clients.latencies_s, 50),
            "p99_s": percentile(clients.latencies_s, 99),
        }
        at_once = await clients.streams_at_once(job["streams"])
        return {**found, "streams": len(at_once), "streams_p99_s": percentile(at_once, 99)}


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    with suppress(KeyboardInterrupt):
        sys.stdout.write(json.dumps(asyncio.run(run(job))) + "\n")


if __name__ == "__main__":
    main()
