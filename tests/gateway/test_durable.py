"""A turn is on disk before its answer has ended: a gateway killed at that moment has lost nothing."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from ludus.runs.store import RunStore

GATEWAY = """
import sys
from pathlib import Path
from ludus.engines.scripted import ScriptedEngine
from ludus.gateway.app import GatewayOptions
from ludus.gateway.server import GatewayServer
from ludus.episodes.archive import RunArchive
from ludus.episodes.episodes import Episodes
from ludus.episodes.recorder import Recorder
from ludus.text.chat import ChatText
from ludus.runs.store import RunStore
text = ChatText.load(Path(sys.argv[1]))
store = RunStore.create(sys.argv[2], "run", "")
engine = ScriptedEngine(lambda call: "I say 7, and then " + str(len(call.prompt_ids)), text.tokenizer)
episodes = Episodes(Recorder(engine, text), RunArchive(store))
options = GatewayOptions(open_mode=episodes.open_for_key, episodes=episodes, admin_key="the-admin-key-of-the-test")
server = GatewayServer(episodes.keys, options)
print(server.start(), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("stream", [True, False])
def test_a_killed_gateway_has_every_turn_that_was_answered(
    tokenizer_folder: Path, tmp_path: Path, stream: bool
) -> None:
    """Killed as soon as the last byte of the last answer is there, with a long history and an acknowledged reward."""
    command = [sys.executable, "-c", GATEWAY, str(tokenizer_folder), str(tmp_path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdin is not None
    try:
        url, messages, ids = process.stdout.readline().strip(), [], []
        with httpx.Client(base_url=url, headers={"x-api-key": "ann"}, timeout=30) as http:
            for number in range(12):
                messages.append({"role": "user", "content": f"Guess {number}."})
                if number == 11:
                    http.post("/sessions/current/rewards", json={"reward": 0.5})
                turn_id, text = ask(http, messages, stream=stream)
                messages.append({"role": "assistant", "content": text})
                ids.append(turn_id)
            process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stdin.close()
    with RunStore.open(tmp_path / "run") as run:
        (episode,) = run.episodes()
    assert [turn.id for turn in episode.session.turns] == ids
    last = episode.session.turns[-1]
    assert [message.content for message in (*last.messages, last.reply)] == [one["content"] for one in messages]
    assert len({turn.prefix for turn in episode.session.turns}) == 12
    assert (episode.outcome.kind, episode.rewards) == ("cancelled", {ids[10]: 0.5})


def ask(http: httpx.Client, messages: list[Any], *, stream: bool) -> tuple[str, str]:
    """Completion id and text of one answer, read to its last byte."""
    answer = http.post("/v1/chat/completions", json={"messages": messages, "stream": stream})
    assert answer.status_code == 200, answer.text
    if not stream:
        body = answer.json()
        return body["id"], body["choices"][0]["message"]["content"]
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    return events[0]["id"], "".join(event["choices"][0]["delta"].get("content") or "" for event in events)
