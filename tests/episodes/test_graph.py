"""The token graph: exact paths, shared context, no shared samples, edges that say the truth."""

import threading

import pytest

from ludus.episodes.graph import SessionGraph
from ludus.errors import InternalError
from ludus.types import Message, Sampled, Sampling, ToolSpec


@pytest.fixture
def graph():
    return SessionGraph("s")


def sampled(*token_ids, stop_reason="stop"):
    return Sampled(token_ids, tuple(-1.0 for _ in token_ids), tuple(0 for _ in token_ids), stop_reason)


def add(graph, turn_id, prompt_ids, token_ids, *, prefix=None, follows=None, fork=None, **fields):
    return graph.add_turn(
        turn_id=turn_id,
        prompt_ids=prompt_ids,
        prefix=prefix,
        follows=follows,
        fork=fork,
        messages=(Message("user", turn_id),),
        reply=Message("assistant", turn_id),
        sampled=sampled(*token_ids),
        sampling=Sampling(),
        **fields,
    )


def tokens_of(graph):
    return [node.token_ids for node in graph.snapshot().nodes]


def test_conversation(graph):
    """Turns of a conversation add only what is new, and their paths are what the engine saw and sampled."""
    first = add(graph, "a", (1, 2), (3, 4))
    second = add(graph, "b", (1, 2, 3, 4, 5), (6,), prefix="a", follows="a")
    assert tokens_of(graph) == [(1, 2), (3, 4), (5,), (6,)]
    assert (first.prefix, second.prefix) == (None, "a")
    assert graph.path_ids("b") == graph.snapshot().path_ids(second.node) == (1, 2, 3, 4, 5, 6)
    assert [turn.id for turn in graph.snapshot().turns] == ["a", "b"]


def test_same_prompt(graph):
    """Two samples of one prompt share it and nothing else, even when they are equal."""
    add(graph, "a", (1, 2), (3,))
    add(graph, "b", (1, 2), (3,))
    add(graph, "c", (1, 2), (4,))
    assert tokens_of(graph) == [(1, 2), (3,), (3,), (4,)]
    assert [node.turn_id for node in graph.snapshot().nodes] == [None, "a", "b", "c"]


def test_prefix_of_several(graph):
    """A turn can be the prefix of several later ones; equal context after it is stored once."""
    add(graph, "a", (1,), (2,))
    add(graph, "b", (1, 2, 3), (4,), prefix="a", follows="a")
    add(graph, "c", (1, 2, 3), (5,), prefix="a", follows="a")
    add(graph, "d", (1, 2, 9), (6,), prefix="a", follows="a")
    assert tokens_of(graph) == [(1,), (2,), (3,), (4,), (5,), (9,), (6,)]


def test_prefix_must_hold(graph):
    """A prompt that does not extend the named prefix is refused, and leaves no trace."""
    add(graph, "a", (1, 2), (3,))
    with pytest.raises(InternalError, match=r"turn b \(4 tokens\) does not extend the 3 tokens of turn a"):
        add(graph, "b", (1, 2, 9, 9), (4,), prefix="a")
    with pytest.raises(InternalError, match="has no turn x"):
        add(graph, "b", (1, 2), (4,), prefix="x")
    assert graph.stats().num_nodes == 2


def test_prefix_is_found(graph):
    """Without a named prefix whole nodes are walked as far as they match, through samples too."""
    add(graph, "a", (1, 2), (3,))
    add(graph, "b", (1, 2, 3, 4), (5,), prefix="a", follows="a")
    found = add(graph, "c", (1, 2, 3, 4, 5, 6), (7,))
    assert found.prefix == "b"
    shared = add(graph, "d", (1, 2, 8), (9,))
    assert shared.prefix is None
    assert tokens_of(graph)[4:] == [(6,), (7,), (8,), (9,)]


def test_longest_chain_is_found(graph):
    """Where several chains of nodes match, the longest is taken, though it is not the first."""
    add(graph, "a", (1,), (2,))
    add(graph, "b", (1, 2, 3), (9,))  # from a
    add(graph, "c", (1, 2, 3, 4), (5,))
    assert add(graph, "d", (1, 2, 3, 4, 5, 6), (7,)).prefix == "c"


def test_half_a_node_is_not_shared(graph):
    """A node that matches only in part is not split: both prompts keep their own."""
    add(graph, "a", (1, 2, 3), (4,))
    add(graph, "b", (1, 2, 9), (5,))
    assert tokens_of(graph) == [(1, 2, 3), (4,), (1, 2, 9), (5,)]


def test_empty_sample(graph):
    """A turn that sampled nothing is a node without tokens, and can be extended like any other."""
    add(graph, "a", (1, 2), ())
    second = add(graph, "b", (1, 2, 3), (4,), prefix="a", follows="a", fork="edit")
    assert (second.prefix, second.fork) == ("a", None)
    assert tokens_of(graph) == [(1, 2), (), (3,), (4,)]
    assert add(graph, "c", (1, 2), (7,)).prefix is None
    assert graph.path_ids("b") == (1, 2, 3, 4)


def test_prompt_without_new_tokens(graph):
    """A prompt that is exactly an earlier path hangs the sample on it, without an empty node between."""
    add(graph, "a", (1,), (2,))
    add(graph, "b", (1, 2), (3,), prefix="a", follows="a")
    assert tokens_of(graph) == [(1,), (2,), (3,)]


def test_fork_keeps_credit(graph):
    """A fork keeps `follows` and its reason; it shares the tokens that are still the same."""
    add(graph, "a", (1, 2), (3, 4))
    forked = add(graph, "b", (1, 2, 4, 5), (6,), follows="a", fork="reasoning_stripped")
    assert (forked.prefix, forked.follows, forked.fork) == (None, "a", "reasoning_stripped")
    assert tokens_of(graph) == [(1, 2), (3, 4), (4, 5), (6,)]


def test_fork_that_is_none(graph):
    """A reason is dropped where the tokens extend those of `follows` after all, or nothing is followed."""
    add(graph, "a", (1,), (2,))
    add(graph, "b", (1, 2, 3), (4,), prefix="a", follows="a")
    assert add(graph, "c", (1, 2, 3, 4, 5), (6,), follows="a", fork="edit").fork is None
    assert add(graph, "d", (9,), (6,), fork="edit").fork is None


def test_tools_are_held_once(graph):
    """Equal tools, whose parameters no hash can take, are one object for the session."""
    turns = [add(graph, name, (1,), (2,), tools=[ToolSpec("ask", "", {"type": "object"})]) for name in "ab"]
    assert turns[0].tools is turns[1].tools


def test_bad_turns(graph):
    """A turn id that is taken, an unknown `follows` and a prompt without tokens are refused."""
    add(graph, "a", (1,), (2,))
    with pytest.raises(InternalError, match="already has a turn a"):
        add(graph, "a", (1,), (2,))
    with pytest.raises(InternalError, match="has no turn x"):
        add(graph, "b", (1,), (2,), follows="x")
    with pytest.raises(InternalError, match="holds no token"):
        add(graph, "b", (), (2,))


def test_stats(graph):
    """Statistics count nodes, turns and tokens that are stored."""
    add(graph, "a", (1, 2), (3,))
    add(graph, "b", (1, 2), (4,))
    assert (graph.stats().num_nodes, graph.stats().num_turns, graph.stats().num_tokens) == (3, 2, 4)
    assert "num_turns=2" in repr(graph)


def test_threads(graph):
    """Turns added from many threads at once are all there, with their exact paths."""

    def play(agent):
        prompt = (1, 2)
        for number in range(20):
            turn_id = f"{agent}-{number}"
            follows = f"{agent}-{number - 1}" if number else None
            add(graph, turn_id, prompt, (agent, number), prefix=follows, follows=follows)
            prompt = (*prompt, agent, number, 7)

    threads = [threading.Thread(target=play, args=(agent,)) for agent in range(10, 14)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    record = graph.snapshot()
    assert len(record.turns) == 80
    for agent in range(10, 14):
        expected = (1, 2, *(token for number in range(20) for token in (agent, number, 7)))[:-1]
        assert graph.path_ids(f"{agent}-19") == expected


def test_prompt_tokens_are_counted(graph):
    """A turn's prompt is its whole path without what the turn sampled, also where it extends another turn."""
    for turn_id, prompt, prefix, reply in (("a", (1, 2, 3), None, (4, 5)), ("b", (1, 2, 3, 4, 5, 6), "a", (7,))):
        graph.add_turn(
            turn_id=turn_id,
            prompt_ids=prompt,
            prefix=prefix,
            follows=prefix,
            fork=None,
            messages=(Message("user", turn_id),),
            reply=Message("assistant", turn_id),
            sampled=sampled(*reply),
            sampling=Sampling(),
        )
        assert graph.num_prompt_tokens(turn_id) == len(prompt)
