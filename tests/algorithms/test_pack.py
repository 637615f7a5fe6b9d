"""Packing: every target keeps its own past, shared tokens are stored once, rows keep to their budget."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.algorithms.pack import Batch, PackedRow, TrainSequence, pack
from ludus.errors import InternalError, UserError

quick = settings(derandomize=True, deadline=None, max_examples=100)


def sequence(token_ids, target_idx, mark=0):
    """A sequence whose columns differ from target to target and, through `mark`, from others."""
    return TrainSequence(
        token_ids=tuple(token_ids),
        target_idx=tuple(target_idx),
        advantages=tuple(mark + index / 8 for index in target_idx),
        weights=tuple(1.0 + mark for _ in target_idx),
        logprobs=tuple(-index / 4 for index in target_idx),
        versions=tuple(mark + index for index in target_idx),
        temperatures=tuple(0.5 + mark for _ in target_idx),
    )


@st.composite
def some_sequences(draw):
    """Sequences over three tokens, so that they share starts, equal each other, or are starts of others."""
    sequences = []
    for mark in range(draw(st.integers(0, 8))):
        token_ids = draw(st.lists(st.integers(0, 2), min_size=2, max_size=9))
        if sequences and draw(st.booleans()):
            other = draw(st.sampled_from(sequences)).token_ids
            token_ids = [*other[: draw(st.integers(0, len(other)))], *token_ids]
        target_idx = draw(st.lists(st.integers(1, len(token_ids) - 1), unique=True).map(sorted))
        sequences.append(sequence(token_ids, target_idx, mark))
    return sequences


def wanted(sequences):
    """What must be trained: each target with the tokens before it and its columns."""
    return Counter(
        (item.token_ids[:index], item.token_ids[index], a, w, p, v, t)
        for item in sequences
        for index, a, w, p, v, t in zip(
            item.target_idx,
            item.advantages,
            item.weights,
            item.logprobs,
            item.versions,
            item.temperatures,
            strict=True,
        )
    )


def unpacked(rows):
    """What the rows train, read back through the parents of each source."""
    found = Counter()
    for row in rows:
        columns = (row.target_ids, row.advantages, row.weights, row.logprobs, row.versions, row.temperatures)
        for source, *target in zip(row.source_idx, *columns, strict=True):
            found[path_to(row, source), *target] += 1
    return found


def path_to(row, index):
    path = []
    while index >= 0:
        path.append(row.token_ids[index])
        index = row.parents[index]
    return tuple(reversed(path))


def starts(sequences):
    """Every distinct start that has to go through the model: the slow count of a trie's tokens."""
    return {
        item.token_ids[:length] for item in sequences if item.target_idx for length in range(1, item.target_idx[-1] + 1)
    }


def test_example_of_the_module():
    """Two sequences `a b C` and `a b D E` become three stored tokens and three targets."""
    (row,) = pack([sequence([7, 8, 20], [2], 1), sequence([7, 8, 21, 22], [2, 3], 2)], row_tokens=16)
    assert row.token_ids == (7, 8, 21)
    assert row.positions == (0, 1, 2)
    assert row.parents == (-1, 0, 1)
    assert row.source_idx == (1, 1, 2)
    assert row.target_ids == (20, 21, 22)
    assert row.versions == (3, 4, 5)
    assert row.num_sequence_tokens == 7


def test_equal_siblings():
    """Two turns that sampled the same tokens share every stored token and are both trained."""
    (row,) = pack([sequence([5, 6, 7, 8], [2, 3], mark) for mark in (1, 2)], row_tokens=16)
    assert row.token_ids == (5, 6, 7)
    assert row.target_ids == (7, 8, 7, 8)
    assert row.source_idx == (1, 2, 1, 2)
    assert row.weights == (2.0, 2.0, 3.0, 3.0)


def test_nothing_after_the_last_target():
    """Context after the last trained token is not stored; a sequence without targets is not stored at all."""
    (row,) = pack([sequence([1, 2, 3, 4, 5], [1]), sequence([1, 2, 9, 9], [])], row_tokens=16)
    assert row.token_ids == (1,)
    assert row.target_ids == (2,)
    assert pack([sequence([1, 2], [])], row_tokens=16) == ()
    assert pack([], row_tokens=16) == ()


def test_long_path_has_its_own_row():
    """A path longer than a row gets a longer row, together with the paths that it extends and nobody else."""
    long = list(range(10, 20))
    sequences = [sequence(long, [9]), sequence(long[:4], [3]), sequence([1, 2], [1])]
    rows = pack(sequences, row_tokens=4)
    assert sorted(len(row.token_ids) for row in rows) == [1, 9]
    assert unpacked(rows) == wanted(sequences)


def test_small_tries_share_a_row():
    """Tries that share nothing stand one after another in a row, each from position 0."""
    (row,) = pack([sequence([1, 2, 3], [2]), sequence([4, 5, 6], [2])], row_tokens=4)
    assert row.token_ids == (1, 2, 4, 5)
    assert row.positions == (0, 1, 0, 1)
    assert row.parents == (-1, 0, -1, 2)


def test_cuts_between_families():
    """What does not fit one row is divided where the least is shared: no group's prompt is stored twice."""
    groups = [[0, 1, *range(10 * group, 10 * group + 8)] for group in range(1, 4)]
    sequences = [sequence([*prompt, 50 + i, 60 + i, 70 + i], [10, 11, 12]) for prompt in groups for i in range(3)]
    rows = pack(sequences, row_tokens=20)
    assert [len(row.token_ids) for row in rows] == [16, 16, 16]  # a prompt of 10 and 3 answers that store 2 tokens
    assert unpacked(rows) == wanted(sequences)


@quick
@given(some_sequences(), st.integers(1, 20))
def test_round_trip(sequences, row_tokens):
    """Every target is in the rows exactly once, after exactly its own tokens, with its own columns."""
    assert unpacked(pack(sequences, row_tokens=row_tokens)) == wanted(sequences)


@quick
@given(some_sequences(), st.integers(1, 20))
def test_shape_of_rows(sequences, row_tokens):
    """Rows are forests in depth-first order within their budget, and no token is there for nothing."""
    for row in pack(sequences, row_tokens=row_tokens):
        ancestors = []
        for index, (parent, position) in enumerate(zip(row.parents, row.positions, strict=True)):
            while ancestors and ancestors[-1] != parent:
                ancestors.pop()
            assert parent == (ancestors[-1] if ancestors else -1)
            assert position == len(ancestors)
            ancestors.append(index)
        paths = [path_to(row, index) for index in range(len(row.token_ids))]
        assert len(set(paths)) == len(paths)
        leaves = set(range(len(row.token_ids))) - set(row.parents)
        assert leaves <= set(row.source_idx)
        assert len(row.token_ids) <= row_tokens or len(leaves) == 1


@quick
@given(some_sequences())
def test_one_row_stores_each_start_once(sequences):
    """With room for everything there is one row, and it holds as many tokens as there are distinct starts."""
    rows = pack(sequences, row_tokens=1000)
    assert len(rows) == (1 if starts(sequences) else 0)
    assert sum(len(row.token_ids) for row in rows) == len(starts(sequences))


@quick
@given(some_sequences(), st.integers(1, 20), st.randoms())
def test_order_of_input(sequences, row_tokens, rng):
    """The same sequences in any order are stored in the same rows; in the same order everything is equal."""
    rows = pack(sequences, row_tokens=row_tokens)
    assert pack(list(sequences), row_tokens=row_tokens) == rows
    shuffled = list(sequences)
    rng.shuffle(shuffled)
    again = pack(shuffled, row_tokens=row_tokens)
    assert [(row.token_ids, row.parents) for row in again] == [(row.token_ids, row.parents) for row in rows]


def test_batch_counts():
    """A batch counts targets, tokens that go through the model, and those that would without sharing."""
    sequences = [sequence([1, 2, 3, 4], [2, 3]), sequence([1, 2, 5], [2]), sequence([9, 9], [1])]
    batch = Batch.of(pack(sequences, row_tokens=4), version=3)
    assert (batch.num_trained, batch.num_row_tokens, batch.num_sequence_tokens) == (4, 4, 9)


@pytest.mark.parametrize("target_idx", [[0], [3], [2, 1], [1, 1], [-1]])
def test_bad_targets(target_idx):
    """Targets rise, have a token before them and lie inside the sequence."""
    with pytest.raises(InternalError, match="target_idx must rise"):
        sequence([1, 2, 3], target_idx)


def test_bad_columns():
    """Columns of unequal length are refused where they are made."""
    with pytest.raises(InternalError, match="must have length 1"):
        TrainSequence((1, 2), (1,), (1.0,), (1.0,), (), (0,), (1.0,))
    with pytest.raises(InternalError, match="must have length 2"):
        PackedRow((1, 2), (0, 1), (-1,), (), (), (), (), (), (), ())


def test_bad_budget():
    """A row holds at least one token."""
    with pytest.raises(UserError, match="at least 1, got 0"):
        pack([], row_tokens=0)


def test_numbers_of_turns_travel_with_their_targets():
    """They stay beside the targets they are of; all sequences of a row carry them, or none."""
    first, second = sequence([1, 2, 3], [1, 2]), sequence([1, 2, 4, 5], [2, 3], mark=1)
    numbered = [replace(first, turns=(1, 2)), replace(second, turns=(3, 4))]
    (row,) = pack(numbered, row_tokens=16)
    found = dict(zip(zip(row.target_ids, row.advantages, strict=True), row.turns, strict=True))
    assert found == {(2, 1 / 8): 1, (3, 2 / 8): 2, (4, 1 + 2 / 8): 3, (5, 1 + 3 / 8): 4}
    assert pack([first, second], row_tokens=16)[0].turns is None
    with pytest.raises(InternalError, match="all must, or none"):
        pack([numbered[0], second], row_tokens=16)
