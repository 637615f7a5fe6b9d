"""Turns are kept before their answers end, each with what is new in the session's graph."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from ludus.engines.scripted import ScriptedEngine
from ludus.episodes.recorder import Recorder
from ludus.episodes.reward import leaves
from ludus.episodes.spec import SessionSpec
from ludus.errors import BackendError
from ludus.types import ChatRequest, Message, Node, Turn
from tests.episodes.conftest import SetTable, user


class Kept:
    """A sink that holds what it is told."""

    def __init__(self, *, is_full: bool = False) -> None:
        self.nodes: list[Node] = []
        self.turns: list[Turn] = []
        self.is_full = is_full

    def add_turn(self, session_id: str, nodes: Sequence[Node], turn: Turn) -> None:
        if self.is_full:
            raise BackendError("the disk is full")
        self.nodes += nodes
        self.turns.append(turn)


def test_a_turn_is_kept_before_its_answer_ends(set_table: SetTable) -> None:
    """When a request is answered the sink has its turn, and all it was told is the session's record."""
    table, sink = set_table([]), Kept()
    session = Recorder(ScriptedEngine(["7", "8", "9"], table.text.tokenizer), table.text).open(
        SessionSpec("s"), sink=sink
    )

    async def play() -> None:
        messages: list[Message] = [user("Guess.")]
        for number in range(3):
            (turn,) = await session.complete(ChatRequest(tuple(messages)))
            assert sink.turns[number] is turn
            messages += [turn.reply, user("higher")]

    asyncio.run(play())
    assert tuple(sink.nodes) == session.snapshot().nodes
    assert tuple(sink.turns) == session.snapshot().turns


def test_an_answer_that_cannot_be_kept_fails(set_table: SetTable) -> None:
    """A full disk is an error of the request, which may be sent again; its tokens are in the record all the same, as
    of an answer that was broken off: nobody saw it, and no reward is for it."""
    text, sink = set_table([]).text, Kept(is_full=True)
    session = Recorder(ScriptedEngine(["7", "7"], text.tokenizer), text).open(SessionSpec("s"), sink=sink)
    request = ChatRequest((user("Guess."),), retry_key="once")
    with pytest.raises(BackendError, match="the disk is full"):
        asyncio.run(session.complete(request))
    assert session.snapshot().num_sampled_tokens == 2
    sink.is_full = False
    (turn,) = asyncio.run(session.complete(request))
    lost, kept = session.snapshot().turns
    assert kept is turn and (lost.sampled.stop_reason, lost.abort_cause) == ("abort", "failed")
    assert lost.sampling.seed == kept.sampling.seed and kept.sampled.stop_reason != "abort"
    assert leaves(session.snapshot().turns) == (kept.id,)
