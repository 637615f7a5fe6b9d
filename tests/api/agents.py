"""Agents that play in worker processes too: whoever runs one imports this file, so it imports little."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any


async def ask(base_url: str, http_client: Any, text: str = "Guess.") -> tuple[str, str]:
    body = {"messages": [{"role": "user", "content": text}]}
    answer = (await http_client.post(base_url + "/chat/completions", json=body)).json()
    return answer["id"], answer["choices"][0]["message"]["content"]


class Misbehaves:
    """Of each three episodes of a row the first does what the row says; the others behave."""

    def __init__(self, notes: str) -> None:
        self.notes = Path(notes)

    async def run(self, data: Mapping[str, Any], *, base_url: str, http_client: Any, **_: Any) -> Any:
        completion_id, text = await ask(base_url, http_client)
        reward = float(len(text) % 5)
        try:
            (self.notes / f"{data['what']}-{data['row']}").touch(exist_ok=False)
        except FileExistsError:
            return reward
        match data["what"]:
            case "crash":
                os.kill(os.getpid(), signal.SIGKILL)
            case "hang":
                if data["is_alone"]:
                    time.sleep(600)  # noqa: ASYNC251  (a process of its own may block, and is killed)
                await asyncio.sleep(600)
            case "raise":
                raise KeyError("nothing here")
            case "shout":
                for _ in range(1000):
                    sys.stdout.write("shouting\n" * 1000)
            case "unknown":
                return {"chatcmpl-nobody": 1.0}
        return {completion_id: reward}


class Counts:
    """Keeps its state from episode to episode."""

    def __init__(self, start: int) -> None:
        self.count = start

    async def run(self, data: Mapping[str, Any], *, base_url: str, http_client: Any) -> int:
        await ask(base_url, http_client)
        self.count += 1
        return self.count
