"""What must stand in the record after an agent has played, whatever it was written with.

Two laws: nothing is lost (`check_record`), and a conversation that only grows is one path of tokens (`check_path`).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence

from ludus.episodes.export import TurnCredit, export_session
from ludus.types import SessionRecord
from tests.frameworks.conftest import ServedSession


def check_record(served: ServedSession) -> SessionRecord:
    """The record, in which every call of the engine is a turn, token by token, and every token is trained once."""
    record = asyncio.run(served.session.aclose("the agent is done"))
    calls = {call.id: call for call in served.engine.calls}
    assert {turn.id for turn in record.turns} == set(calls)
    assert served.session.stats().refused == {}
    paths = {turn.id: record.path_ids(turn.node) for turn in record.turns}
    for turn in record.turns:
        prompt_ids, sampled = calls[turn.id].prompt_ids, turn.sampled
        assert paths[turn.id] == prompt_ids + sampled.token_ids
        assert sampled.logprobs == asyncio.run(served.engine.score((0, *sampled.token_ids)))
        if turn.prefix is not None:
            assert prompt_ids[: len(paths[turn.prefix])] == paths[turn.prefix]
        assert turn.fork is None or turn.prefix != turn.follows
    check_ledger(record)
    return record


def check_ledger(record: SessionRecord) -> None:
    """Both styles train every sampled token that the client did not interrupt, and account for the others."""
    credit = {turn.id: TurnCredit(1.0, None) for turn in record.turns}
    num_aborted = sum(len(turn.sampled.token_ids) for turn in record.turns if turn.sampled.stop_reason == "abort")
    for style in ("individual", "concat"):
        ledger = export_session(record, credit, weight=1.0, style=style).ledger
        assert ledger.sampled == record.num_sampled_tokens == ledger.trained + num_aborted
        assert ledger.masked == ({"aborted": num_aborted} if num_aborted else {})


def check_path(served: ServedSession, replies: Sequence[str], added: Sequence[str]) -> None:
    """One path without forks: the first prompt, then every reply as it was sampled and what was said in between.

    added: what stands between the end of a reply and the beginning of the next, one less than `replies`.
    """
    record = check_record(served)
    tokenizer = served.text.tokenizer
    assert [turn.fork for turn in record.turns] == [None] * len(replies)
    for earlier, later in itertools.pairwise(record.turns):
        assert later.prefix == later.follows == earlier.id
    for turn, reply in zip(record.turns, replies, strict=True):
        assert tokenizer.decode(turn.sampled.token_ids) == reply + STOP
        assert turn.sampled.token_ids[:-1] == tokenizer.encode(reply)
    said = [part for reply, after in zip(replies, (*added, ""), strict=True) for part in (reply + STOP, after)]
    assert tokenizer.decode(record.path_ids(record.turns[-1].node)).endswith(PROMPT_END + "".join(said))


STOP = "<|im_end|>"
PROMPT_END = f"{STOP}\n<|im_start|>assistant\n"
