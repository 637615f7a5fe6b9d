"""The laws of a session on random trees: conservation, exact paths, packing, agreement of styles, edges in order."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.algorithms.pack import pack
from ludus.algorithms.returns import turn_returns
from ludus.episodes.export import TokenBounds, export_session, trained_places
from ludus.episodes.reward import leaves, not_chosen
from tests.episodes.trees import random_session

quick = settings(derandomize=True, deadline=None, max_examples=100)
seeds = st.integers(0, 2**32)
bounds = st.builds(TokenBounds, st.none() | st.integers(0, 3), st.none() | st.integers(1, 60))
both_styles = pytest.mark.parametrize("style", ["individual", "concat"])


def session(seed):
    return random_session(random.Random(seed))


def targets(sequences):
    """Each trained token: the path it was predicted from, itself, and its columns."""
    return Counter(
        (item.token_ids[:index], item.token_ids[index], *columns)
        for item in sequences
        for index, *columns in zip(
            item.target_idx,
            item.advantages,
            item.weights,
            item.logprobs,
            item.versions,
            item.temperatures,
            strict=True,
        )
    )


def packed_targets(rows):
    found = Counter()
    for row in rows:
        paths = []
        for token, parent in zip(row.token_ids, row.parents, strict=True):
            paths.append((*(paths[parent] if parent >= 0 else ()), token))
        columns = (row.advantages, row.weights, row.logprobs, row.versions, row.temperatures)
        for source, token, *rest in zip(row.source_idx, row.target_ids, *columns, strict=True):
            found[paths[source], token, *rest] += 1
    return found


@both_styles
@quick
@given(seed=seeds, bounds=bounds)
def test_conservation(style, seed, bounds):
    """Every sampled token is a target of exactly one sequence or counted under exactly one reason."""
    record, credit = session(seed)
    exported = export_session(record, credit, weight=1.0, style=style, bounds=bounds)
    assert exported.ledger.unbalanced == 0
    assert exported.ledger.sampled == record.num_sampled_tokens
    assert exported.ledger.trained == sum(len(item.target_idx) for item in exported.sequences)
    assert exported.ledger.trained == sum(map(len, trained_places(record, credit, bounds=bounds).values()))
    # Logprobs are random numbers, so each names its sampled token.
    sampled = Counter(
        (token, logprob)
        for turn in record.turns
        for token, logprob in zip(turn.sampled.token_ids, turn.sampled.logprobs, strict=True)
    )
    assert (
        not Counter(
            (item.token_ids[index], logprob)
            for item in exported.sequences
            for index, logprob in zip(item.target_idx, item.logprobs, strict=True)
        )
        - sampled
    )


@quick
@given(seed=seeds, bounds=bounds)
def test_trained_after_what_the_engine_saw(seed, bounds):
    """A trained token's past in its sequence is what the engine had before it: prompt and earlier samples."""
    record, credit = session(seed)
    seen = Counter()
    for turn in record.turns:
        path = record.path_ids(turn.node)
        start = len(path) - len(turn.sampled.token_ids)
        seen.update((path[: start + i], token, turn.sampled.logprobs[i]) for i, token in enumerate(path[start:]))
    for style in ("individual", "concat"):
        exported = export_session(record, credit, weight=1.0, style=style, bounds=bounds)
        found = Counter((past, token, logprob) for past, token, _, _, logprob, _, _ in targets(exported.sequences))
        assert not found - seen


@quick
@given(seed=seeds, bounds=bounds)
def test_styles_agree(seed, bounds):
    """`individual` and `concat` train equal tokens after equal tokens with equal credit and equal ledgers."""
    record, credit = session(seed)
    individual = export_session(record, credit, weight=0.25, style="individual", bounds=bounds)
    concat = export_session(record, credit, weight=0.25, style="concat", bounds=bounds)
    assert targets(individual.sequences) == targets(concat.sequences)
    assert individual.ledger == concat.ledger
    assert len(concat.sequences) <= len(individual.sequences)


@both_styles
@quick
@given(seed=seeds, row_tokens=st.integers(1, 200))
def test_packing_round_trip(style, seed, row_tokens):
    """Packed and read back, every target sees exactly its own path."""
    record, credit = session(seed)
    sequences = export_session(record, credit, weight=1.0, style=style).sequences
    assert packed_targets(pack(sequences, row_tokens=row_tokens)) == targets(sequences)


@quick
@given(seed=seeds)
def test_packing_forgets_the_style(seed):
    """With room for everything both styles store the same tree."""
    record, credit = session(seed)
    trees = [
        {(row.token_ids, row.parents) for row in pack(exported.sequences, row_tokens=10**6)}
        for style in ("individual", "concat")
        for exported in [export_session(record, credit, weight=1.0, style=style)]
    ]
    assert trees[0] == trees[1]


@quick
@given(seed=seeds)
def test_graph_invariants(seed):
    """Sampled nodes belong to one turn, context is stored once, parents and edges lead back."""
    record, _ = session(seed)
    owners = [node.turn_id for node in record.nodes if node.turn_id is not None]
    assert sorted(owners) == sorted(turn.id for turn in record.turns)
    context = [(node.parent, node.token_ids) for node in record.nodes if node.turn_id is None]
    assert len(set(context)) == len(context)
    assert all(node.parent is None or node.parent < index for index, node in enumerate(record.nodes))
    earlier = {}
    for turn in record.turns:
        assert record.nodes[turn.node].turn_id == turn.id
        assert record.nodes[turn.node].token_ids == turn.sampled.token_ids
        assert turn.follows is None or turn.follows in earlier
        if turn.prefix is not None:
            path = record.path_ids(earlier[turn.prefix].node)
            assert record.path_ids(turn.node)[: len(path)] == path
        if turn.fork is not None:
            assert turn.follows is not None
        earlier[turn.id] = turn


@quick
@given(seed=seeds, reward=st.floats(-4, 4), discount=st.floats(0, 1))
def test_credit_reaches_what_led_to_it(seed, reward, discount):
    """On any tree a number reaches every completed turn but those that were not chosen, whatever the order in which
    turns finished; no return exceeds it."""
    record, _ = session(seed)
    completed = {turn.id for turn in record.turns if turn.sampled.stop_reason != "abort"}
    if not completed:
        return
    rewards = dict.fromkeys(leaves(record.turns), reward)
    returns = turn_returns({turn.id: turn.follows for turn in record.turns}, rewards, turn_discount=discount)
    reached = {turn_id for turn_id, value in returns.items() if value is not None}
    assert completed - not_chosen(record.turns) <= reached
    assert all(abs(value) <= abs(reward) + 1e-9 for value in returns.values() if value is not None)
    shuffled = list(record.turns)
    random.Random(seed).shuffle(shuffled)
    assert dict.fromkeys(leaves(shuffled), reward) == rewards


def test_trees_reproduce():
    """The same seed gives the same session and the same credit."""
    assert session(7) == session(7)


def test_trees_meet_every_case():
    """Among a few hundred trees every case is met that the laws are about."""
    met = Counter()
    for seed in range(300):
        record, credit = session(seed)
        met.update(record.turns and [f"fork {turn.fork}" for turn in record.turns])
        followers = Counter(turn.follows for turn in record.turns if turn.follows)
        extended = Counter(turn.prefix for turn in record.turns if turn.prefix)
        at_parent = Counter((record.nodes[turn.node].parent, turn.sampled.token_ids) for turn in record.turns)
        agents = {turn.id: turn.agent for turn in record.turns}
        met["branch"] += max(followers.values(), default=0) > 1
        met["prefix of several"] += max(extended.values(), default=0) > 1
        met["equal siblings"] += max(at_parent.values()) > 1
        met["several roots"] += sum(turn.follows is None for turn in record.turns) > 1
        met["sub-agent"] += any(agents[turn.follows] != turn.agent for turn in record.turns if turn.follows)
        met["prefix other than follows"] += any(turn.prefix and turn.prefix != turn.follows for turn in record.turns)
        met["deep"] += any(record.nodes[turn.node].parent not in (None, 0) and turn.prefix for turn in record.turns)
        met["empty"] += any(not turn.sampled.token_ids for turn in record.turns)
        met.update(exported_reasons(record, credit))
    expected = [
        *[f"fork {fork}" for fork in ("None", "edit", "truncated", "reasoning_stripped", "retokenised")],
        *["branch", "prefix of several", "equal siblings", "several roots", "sub-agent", "prefix other than follows"],
        *["deep", "empty", "aborted", "greedy", "kept_set", "stale", "too_long", "no_credit"],
    ]
    assert [case for case in expected if met[case] < 5] == []


def exported_reasons(record, credit):
    return export_session(record, credit, weight=1.0, style="concat", bounds=TokenBounds(1, 40)).ledger.masked
