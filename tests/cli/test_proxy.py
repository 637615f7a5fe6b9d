"""The proxy passes requests on unchanged and keeps what was said."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from ludus.cli.proxy import ExternalSession, RecordingProxy
from ludus.engines.scripted import ScriptedEngine
from ludus.episodes.episodes import Episodes
from ludus.episodes.recorder import Recorder
from ludus.gateway.app import GatewayOptions
from ludus.gateway.server import GatewayServer
from ludus.text.chat import ChatText

ASKED = [{"role": "user", "content": "Guess."}]


@pytest.fixture
def proxy(tokenizer_folder: Path) -> Iterator[RecordingProxy]:
    text = ChatText.load(tokenizer_folder)
    recorder = Recorder(ScriptedEngine(lambda call: "eleven of them", text.tokenizer), text)
    episodes = Episodes(recorder)
    options = GatewayOptions(open_mode=episodes.open_for_key)
    with (
        GatewayServer(episodes.keys, options) as server,
        RecordingProxy(f"{server.base_url}/v1", "secret") as proxy,
    ):
        yield proxy


def _only(session: ExternalSession) -> tuple[str | None, int | None, float | None]:
    (turn,) = session.graph.snapshot().turns
    reply = session.replies[turn.id]
    return turn.reply.content, reply.num_tokens, reply.mean_logprob


def test_streamed_and_unstreamed_answers_are_kept_alike(proxy: RecordingProxy) -> None:
    """A blocking client, streaming or not, leaves the same turn in the session."""
    seen = []
    for stream in (False, True):
        base_url = proxy.open()
        client = openai.OpenAI(base_url=base_url, api_key="any", max_retries=0)
        with client:
            answer = client.chat.completions.create(model="default", messages=ASKED, stream=stream)  # type: ignore[call-overload]
            if stream:
                text = "".join(chunk.choices[0].delta.content or "" for chunk in answer if chunk.choices)
                assert text == "eleven of them"
        seen.append(_only(proxy.close(base_url)))
    assert seen[0][0] == seen[1][0] == "eleven of them"
    assert seen[0][1] and seen[0][2] is not None and seen[0][2] == pytest.approx(seen[1][2])


def test_turns_follow_each_other(proxy: RecordingProxy) -> None:
    """Who answers what is found on the messages, so that rewards can be credited."""
    base_url = proxy.open()

    async def talk() -> None:
        async with httpx.AsyncClient() as client:
            messages = list(ASKED)
            for _ in range(2):
                answer = (await client.post(f"{base_url}/chat/completions", json={"messages": messages})).json()
                messages += [answer["choices"][0]["message"], {"role": "user", "content": "lower"}]

    asyncio.run(talk())
    first, second = proxy.close(base_url).graph.snapshot().turns
    assert first.follows is None and second.follows == first.id


def test_errors_of_the_model_reach_the_agent(proxy: RecordingProxy) -> None:
    """A refused request is answered as the model answered it, and is no turn."""
    base_url = proxy.open()
    answer = httpx.post(f"{base_url}/chat/completions", content=json.dumps({"messages": ASKED, "nonsense": 1}))
    assert answer.status_code == 400 and "nonsense" in answer.json()["error"]["message"]
    assert httpx.get(f"{base_url}/models").status_code == 200
    assert proxy.close(base_url).graph.snapshot().turns == ()
    assert httpx.get(f"{base_url}/models").status_code == 401


def test_a_body_without_end_is_refused(proxy: RecordingProxy) -> None:
    """It is not held in memory, and nothing of it is passed on."""
    base_url = proxy.open()
    answer = httpx.post(f"{base_url}/chat/completions", content=(b" " * 2**20 for _ in range(65)))
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")
    assert proxy.close(base_url).graph.snapshot().turns == ()
