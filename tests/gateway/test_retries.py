"""One logical call sent twice, in every protocol: one turn, and the same answer."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import httpx
import pytest

from ludus.engines.scripted import ScriptedEngine
from ludus.episodes.keys import SessionKeys
from ludus.episodes.recorder import Recorder
from ludus.episodes.spec import SessionSpec
from ludus.gateway.app import build_app
from ludus.gateway.dialects.table import DIALECTS
from ludus.text.chat import ChatText

BODIES: dict[str, dict[str, Any]] = {
    "chat": {"messages": [{"role": "user", "content": "Guess."}]},
    "completions": {"prompt": "Guess.", "max_tokens": 16},
    "messages": {"messages": [{"role": "user", "content": "Guess."}], "max_tokens": 16},
    "responses": {"input": "Guess."},
}
PAIRS = (
    ({"x-stainless-retry-count": "0"}, {"x-stainless-retry-count": "1"}),
    ({"idempotency-key": "k"}, {"idempotency-key": "k"}),
)


def written(answer: httpx.Response) -> Any:
    """What the client gets, however it was cut into events: the body, or the ids and the text of a stream."""
    if "json" in answer.headers["content-type"]:
        return answer.json()
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    return set(re.findall(r"(?:chatcmpl-|resp_|msg_|cmpl-)[0-9a-f]{24}", answer.text)), "".join(map(text_of, events))


def text_of(event: dict[str, Any]) -> str:
    for choice in event.get("choices", ()):
        return str(choice["text"] if "text" in choice else choice["delta"].get("content") or "")
    delta = event.get("delta", "")
    return str(delta.get("text", "") if isinstance(delta, dict) else delta)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("headers", PAIRS)
@pytest.mark.parametrize("name", DIALECTS)
def test_a_retry_is_answered_and_not_sampled(text: ChatText, name: str, headers: Any, stream: bool) -> None:
    """By the SDK's header or by an idempotency key; with another body the key is a 409 that no SDK sends again."""
    engine = ScriptedEngine(["I say 7.", "never"], text.tokenizer)
    sessions = SessionKeys()
    session = Recorder(engine, text).open(SessionSpec("s"))
    key = {"x-api-key": sessions.add(session)}
    path, body = f"/v1{DIALECTS[name].paths[0]}", {**BODIES[name], "stream": stream}

    async def main() -> None:
        transport = httpx.ASGITransport(build_app(sessions))
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
            first, again = [await http.post(path, json=body, headers={**key, **one}) for one in headers]
            assert first.status_code == again.status_code == 200, first.text
            assert written(first) == written(again)
            if "idempotency-key" in headers[0]:
                other = await http.post(path, json={**body, "temperature": 0.5}, headers={**key, **headers[0]})
                assert (other.status_code, other.headers["x-should-retry"]) == (409, "false")

    asyncio.run(main())
    (turn,) = session.snapshot().turns
    assert turn.reply.content == "I say 7."
    assert len(engine.calls) == 1
