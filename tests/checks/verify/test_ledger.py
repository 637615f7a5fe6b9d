"""The ledger check passes on what a recorder keeps, is the same for the same seed, and notices what is broken."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import replace

from ludus.checks.verify.chat import chat_of_words
from ludus.checks.verify.ledger import is_balanced, is_recorded, verify_ledger
from ludus.checks.verify.trees import WORDS, PlayedTree, play_tree
from ludus.episodes.export import TurnCredit, export_session


def play(num_trees: int) -> list[PlayedTree]:
    text = chat_of_words(WORDS)

    async def play_all() -> list[PlayedTree]:
        return [await play_tree(random.Random(number), text) for number in range(num_trees)]

    return asyncio.run(play_all())


def test_random_chats_balance() -> None:
    """No tree of eighty breaks the law, and many reasons to mask and to fork occur."""
    seen: list[int] = []
    result = verify_ledger(trees=80, seed=3, on_done=lambda num, _: seen.append(num))
    assert result.ok and result.unbalanced == 0
    assert result.sampled == result.trained + sum(result.masked.values())
    assert {"stale", "kept_set", "greedy", "aborted", "too_long", "no_credit"} <= set(result.masked)
    assert set(result.forks) == {"edit", "truncated", "reasoning_stripped", "template", "retokenised"}
    assert seen == list(range(1, 81))


def test_the_seed_decides_the_trees() -> None:
    """The caller's seed reproduces the check; another seed is another check."""
    first, again, other = (verify_ledger(trees=20, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first.to_json() != other.to_json()


def test_the_chats_meet_every_case() -> None:
    """Among eighty chats is whatever the law must hold through."""
    met: Counter[str] = Counter()
    for tree in play(80):
        turns = tree.record.turns
        met["branch"] += any(count > 1 for count in Counter(turn.follows for turn in turns if turn.follows).values())
        met["several roots"] += sum(turn.follows is None for turn in turns) > 1
        met["sub-agent"] += any(turn.agent and turn.fork for turn in turns)
        met["tool call"] += any(turn.reply.tool_calls for turn in turns)
        met["thinking"] += any(turn.reply.reasoning for turn in turns)
        met["several versions in one answer"] += any(len(set(turn.sampled.versions)) > 1 for turn in turns)
        met["several choices"] += len({turn.started_at for turn in turns}) < len(turns)
        met["shared tokens"] += any(turn.prefix for turn in turns)
        met.update({turn.sampled.stop_reason for turn in turns})
    assert met.keys() >= {"stop", "length", "abort"}
    assert all(count >= 3 for count in met.values()), met


def test_a_record_unlike_the_engine_is_noticed() -> None:
    """A lost token, another prompt and a second answer to one key each break the law of recording."""
    tree = next(tree for tree in play(20) if tree.answers and len(tree.record.turns) > 2)
    assert is_recorded(tree)
    turn = tree.record.turns[0]
    call = tree.calls[turn.id]
    assert not is_recorded(replace(tree, num_sampled=tree.num_sampled + 1))
    other = replace(call, prompt_ids=(*call.prompt_ids[:-1], 7))
    assert not is_recorded(replace(tree, calls={**tree.calls, turn.id: other}))
    assert not is_recorded(replace(tree, answers={"key": frozenset({("one",), ("other",)})}))


def test_an_export_that_loses_or_repeats_is_noticed() -> None:
    """A sequence too few, one too many, or one that trains after other tokens breaks the law of the ledger."""
    tree = next(tree for tree in play(20) if len(tree.record.turns) > 2)
    credit = {turn.id: TurnCredit(1.0, None) for turn in tree.record.turns}
    whole = export_session(tree.record, credit, weight=1.0, style="individual")
    assert is_balanced(tree.num_sampled, [whole, whole])
    first, *rest = whole.sequences
    assert not is_balanced(tree.num_sampled, [whole, replace(whole, sequences=tuple(rest))])
    assert not is_balanced(tree.num_sampled, [whole, replace(whole, sequences=(first, first, *rest))])
    moved = replace(first, token_ids=(first.token_ids[0] + 1, *first.token_ids[1:]))
    assert not is_balanced(tree.num_sampled, [whole, replace(whole, sequences=(moved, *rest))])
