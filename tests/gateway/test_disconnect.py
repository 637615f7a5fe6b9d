"""A client that leaves at any byte of an answer leaves a record that adds up, in every dialect.

A server writes an answer in pieces. At whichever byte a client leaves, it is inside a piece, which the server notices
as a way that broke while it wrote, or after one, which it notices as a message. Both happen here at every piece.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any

import pytest

from ludus.engines.scripted import ScriptedEngine
from ludus.episodes.export import TurnCredit, export_session
from ludus.episodes.keys import SessionKeys
from ludus.episodes.recorder import Recorder
from ludus.episodes.session import Session
from ludus.episodes.spec import SessionSpec
from ludus.gateway.app import build_app
from ludus.text.chat import ChatText

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
ANSWER = f"It is so, said the fox, and looked at the wall once more.\n{CALL}"
ASK = [{"role": "user", "content": "Guess."}]
SCHEMA = {"type": "object"}
BODIES: dict[str, dict[str, Any]] = {
    "/chat/completions": {
        "messages": ASK,
        "tools": [{"type": "function", "function": {"name": "add", "parameters": SCHEMA}}],
    },
    "/responses": {"input": "Guess.", "tools": [{"type": "function", "name": "add", "parameters": SCHEMA}]},
    "/messages": {"messages": ASK, "max_tokens": 200, "tools": [{"name": "add", "input_schema": SCHEMA}]},
    "/completions": {"prompt": "Guess.", "max_tokens": 200},
}


BEFORE = -1  # the first piece


class Client:
    """Reads an answer up to a piece, then leaves: in the middle of that piece, or right after it."""

    def __init__(self, path: str, body: dict[str, Any], leaves_at: int | None, *, inside: bool) -> None:
        self.scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": []}
        self.num_pieces = 0
        self._body = json.dumps(body).encode()
        self._leaves_at = leaves_at
        self._inside = inside
        self._has_asked = False
        self._left = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        if not self._has_asked:
            self._has_asked = True
            if self._leaves_at == BEFORE:
                self._left.set()
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if message["type"] != "http.response.body":
            assert message["status"] == 200
            return
        at, self.num_pieces = self.num_pieces, self.num_pieces + 1
        if at == self._leaves_at:
            self._left.set()
            if self._inside:
                raise ConnectionResetError("the client is gone")


async def play(
    text: ChatText, path: str, leaves_at: int | None, *, stream: bool, inside: bool = False
) -> tuple[Client, Session, ScriptedEngine]:
    engine = ScriptedEngine([ANSWER], text.tokenizer)
    sessions = SessionKeys()
    session = Recorder(engine, text).open(SessionSpec("s1"))
    app = build_app(sessions)
    client = Client(
        f"/s/{sessions.add(session)}/v1{path}", {**BODIES[path], "stream": stream}, leaves_at, inside=inside
    )
    await app(client.scope, client.receive, client.send)  # type: ignore[arg-type]
    return client, session, engine


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", sorted(BODIES))
def test_leaving_anywhere(text: ChatText, path: str, stream: bool) -> None:
    """What the engine sampled is recorded once, as the answer or as its beginning, and the ledger balances."""

    async def main() -> set[str | None]:
        client, session, _ = await play(text, path, None, stream=stream)
        [whole] = session.snapshot().turns
        assert client.num_pieces > 10 or not stream
        ends = set()
        for leaves_at, inside in itertools.product(range(BEFORE, client.num_pieces), (False, True)):
            _, session, engine = await play(text, path, leaves_at, stream=stream, inside=inside)
            record = await session.aclose("done")
            assert len(record.turns) <= 1
            assert session.stats().num_running == engine.stats().num_running == 0
            assert record.num_sampled_tokens == engine.stats().num_sampled_tokens == session.stats().num_tokens
            for turn in record.turns:
                is_whole = turn.sampled.stop_reason == "stop"
                assert turn.sampled.token_ids == whole.sampled.token_ids[: len(turn.sampled.token_ids)]
                assert (turn.abort_cause is None) == is_whole and (turn.sampled == whole.sampled or not is_whole)
                ends.add(turn.abort_cause)
            credit = {turn.id: TurnCredit(1.0, None) for turn in record.turns}
            export_session(record, credit, weight=1.0, style="concat").ledger.check()
        return ends

    assert asyncio.run(main()) == {None, "client_cancel"}
