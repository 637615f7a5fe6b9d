"""Reports the progress of a watched run as server-sent events.

Knows: a watched run.  Knows not: HTTP beyond the format of events.
Invariant: a client that reconnects with the id of its last event misses nothing, and gets a step twice only if it has
more metrics by then, or if the connection broke between steps that came at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from ludus.runs.watch.encode import to_json
from ludus.runs.watch.position import Position
from ludus.runs.watch.run import WatchedRun

POLL_S = 1.0
_ALIVE_S = 15.0  # proxies close what is silent for longer; the page gives up after three times this


async def events_of(run: WatchedRun, heard: Position | None) -> AsyncIterator[bytes]:
    """An endless stream of events, each with the position that the client knows with it. `replaced`: steps that were
    told of are void.

    heard: of the client's last event. None: it had none, so the first events are the state and the number of episodes.
    """
    num_replaced = run.curves.num_replaced
    if heard is None:
        heard = await asyncio.to_thread(run.position)
        yield _event("state", {"state": heard.state}, heard)  # the run may have ended after the page was loaded
        yield _event("episodes", {"count": heard.num_episodes}, heard)  # later events count from this number
    silent_s = 0.0
    yield b": watching\n\n"
    while True:
        now = await asyncio.to_thread(run.position)
        events: list[bytes] = []
        steps = run.curves.steps_since(heard.num_lines if now.num_lines >= heard.num_lines else 0)
        for number, step in enumerate(steps, start=1):
            # only with the last of them does the client know all of these lines
            known = heard._replace(num_lines=now.num_lines) if number == len(steps) else heard
            events.append(_event("step", {"step": step, "metrics": run.curves.at(step)}, known))
        heard = heard._replace(num_lines=now.num_lines)
        if run.curves.num_replaced != num_replaced:
            num_replaced = run.curves.num_replaced
            events.append(_event("replaced", {}, heard))
        if now.num_episodes != heard.num_episodes:
            heard = heard._replace(num_episodes=now.num_episodes)
            events.append(_event("episodes", {"count": now.num_episodes}, heard))
        if now.state != heard.state:
            heard = now
            events.append(_event("state", {"state": now.state}, heard))
        silent_s = 0.0 if events else silent_s + POLL_S
        if silent_s >= _ALIVE_S:
            events, silent_s = [b": still here\n\n"], 0.0
        for event in events:
            yield event
        await asyncio.sleep(POLL_S)


def _event(name: str, data: dict[str, Any], known: Position) -> bytes:
    return f"id: {known}\nevent: {name}\ndata: {to_json(data)}\n\n".encode()
