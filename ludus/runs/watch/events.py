"""Reports the progress of a watched run as server-sent events.

Knows: a watched run.  Knows not: HTTP beyond the format of events.
Invariant: a client that reconnects with the id of its last event misses nothing and gets nothing twice, except steps
that have more metrics by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from ludus.runs.watch.encode import to_json
from ludus.runs.watch.run import WatchedRun

POLL_S = 1.0
_ALIVE_S = 15.0  # proxies close what is silent for longer


async def events_of(run: WatchedRun, heard: tuple[int, int, str] | None) -> AsyncIterator[bytes]:
    """An endless stream of events. heard: number of lines of metrics, number of episodes, and state that the client
    knows. None: it knows none, so the first events are the state and the number of episodes."""
    if heard is None:
        heard = await asyncio.to_thread(_now, run)
        yield _event("state", {"state": heard[2]}, heard)  # the run may have ended after the page was loaded
        yield _event("episodes", {"count": heard[1]}, heard)  # later events count from this number
    num_lines, num_episodes, state = heard
    silent_s = 0.0
    yield b": watching\n\n"
    while True:
        lines, episodes, current = await asyncio.to_thread(_now, run)
        events: list[bytes] = []
        for step in run.curves.steps_since(num_lines if lines >= num_lines else 0):
            data = {"step": step, "metrics": run.curves.at(step)}
            events.append(_event("step", data, (lines, num_episodes, state)))
        if episodes != num_episodes:
            events.append(_event("episodes", {"count": episodes}, (lines, episodes, state)))
        if current != state:
            events.append(_event("state", {"state": current}, (lines, episodes, current)))
        num_lines, num_episodes, state = lines, episodes, current
        silent_s = 0.0 if events else silent_s + POLL_S
        if silent_s >= _ALIVE_S:
            events, silent_s = [b": still here\n\n"], 0.0
        for event in events:
            yield event
        await asyncio.sleep(POLL_S)


def _now(run: WatchedRun) -> tuple[int, int, str]:
    run.curves.update()
    return run.curves.num_lines, run.num_episodes, run.state


def _event(name: str, data: dict[str, Any], known: tuple[int, int, str]) -> bytes:
    id_ = ".".join(map(str, known))
    return f"id: {id_}\nevent: {name}\ndata: {to_json(data)}\n\n".encode()
