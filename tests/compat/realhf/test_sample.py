"""Packed sequences: what is checked, how they are put together and taken apart."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")

from ludus.compat.realhf.sample import MicroBatchSpec, SequenceSample, SequenceSplitSpec  # noqa: E402


def sample(first: int, lengths: list[list[int]]) -> SequenceSample:
    """Items from number `first` on, with sequences of these lengths under `seq`, and a reward for each sequence."""
    total = sum(map(sum, lengths))
    num_seqs = sum(map(len, lengths))
    return SequenceSample(
        keys=["seq", "rewards"],
        trailing_shapes={"seq": (), "rewards": ()},
        dtypes={"seq": torch.long, "rewards": torch.float32},
        ids=[first + idx for idx in range(len(lengths))],
        seqlens={"seq": lengths, "rewards": [[1] * len(item) for item in lengths]},
        data={"seq": torch.arange(total) + 100 * first, "rewards": torch.arange(num_seqs, dtype=torch.float32)},
        metadata={"name": [f"n{first + idx}" for idx in range(len(lengths))]},
    )


def test_sequences_are_found_in_the_packed_data():
    """By item and in order, whatever their number and lengths."""
    packed = sample(0, [[2, 1], [3]])
    assert (packed.bs, packed.ids) == (2, ["0", "1"])
    assert list(packed.sequences("seq")) == [(0, [0, 1]), (0, [2]), (1, [3, 4, 5])]
    with pytest.raises(KeyError, match="no data under 'other'"):
        list(packed.sequences("other"))


def test_gather_and_unpack_undo_each_other():
    """Items keep their sequences, rewards and metadata."""
    together = SequenceSample.gather([sample(0, [[2, 1], [3]]), sample(7, [[1]])])
    assert together.ids == ["0", "1", "7"] and together.metadata == {"name": ["n0", "n1", "n7"]}
    assert together.seqlens["seq"] == [[2, 1], [3], [1]]
    parts = together.unpack()
    assert [part.data["seq"].tolist() for part in parts] == [[0, 1, 2], [3, 4, 5], [700]]
    assert [part.data["rewards"].tolist() for part in parts] == [[0.0, 1.0], [2.0], [0.0]]
    again = SequenceSample.gather(parts)
    assert torch.equal(again.data["seq"], together.data["seq"]) and again.seqlens == together.seqlens
    assert SequenceSample.gather(parts, keys=["seq"]).keys == {"seq"}


def test_parts_within_bounds():
    """At least so many, none with more tokens than allowed, and every item in one of them."""
    whole = sample(0, [[5], [2], [4], [1]])
    parts, forward, backward = whole.split(MicroBatchSpec(n_mbs=2, max_tokens_per_mb=6))
    assert sorted(forward) == [0, 1, 2, 3] and [forward[idx] for idx in backward] == [0, 1, 2, 3]
    assert all(sum(map(sum, part.seqlens["seq"])) <= 6 for part in parts) and len(parts) == 2
    assert [item for part in parts for item in part.ids] == [str(idx) for idx in forward]
    by_sizes = whole.split_with_spec(SequenceSplitSpec(sizes=[1, 3]))
    assert [part.ids for part in by_sizes] == [["0"], ["1", "2", "3"]]
    assert SequenceSample.shuffled(whole, seed=1).ids != whole.ids
    assert sorted(SequenceSample.shuffled(whole, seed=1).ids) == whole.ids


def test_keys_are_chosen_added_and_renamed():
    """Without a copy of the data, and with a check that the items are the same."""
    one = sample(0, [[2], [1]])
    assert one.select({"seq"}).keys == {"seq"} and one.meta().data is None
    other = one.select({"seq"})
    other.remap_keys_({"seq": "input_ids"})
    assert other.keys == set(other.seqlens) == set(other.dtypes) == set(other.data) == {"input_ids"}
    one.update_(other)
    assert one.keys == {"seq", "rewards", "input_ids"} and one.data["input_ids"] is one.data["seq"]
    with pytest.raises(ValueError, match="same ids"):
        one.update_(sample(5, [[2], [1]]))


def test_json_and_back():
    """Every key with its type and shape."""
    one = sample(0, [[2, 1], [3]])
    again = SequenceSample.from_json_compatible(json.loads(json.dumps(one.as_json_compatible())))
    assert (again.keys, again.ids, again.seqlens, again.dtypes) == (one.keys, one.ids, one.seqlens, one.dtypes)
    assert all(torch.equal(again.data[key], one.data[key]) for key in one.keys)
    assert again.trailing_shapes == one.trailing_shapes and again.metadata == one.metadata


def test_lengths_follow_from_the_names_of_keys():
    """A reward is one number, a logprob fewer than the tokens; an unknown name has to be described."""
    data = {
        "packed_input_ids": torch.arange(5),
        "packed_logprobs": torch.zeros(3),
        "rewards": torch.zeros(2),
    }
    made = SequenceSample.from_default(seqlens=[3, 2], ids=["a", "b"], data=data)
    assert made.seqlens == {"packed_input_ids": [[3], [2]], "packed_logprobs": [[2], [1]], "rewards": [[1], [1]]}
    with pytest.raises(NotImplementedError, match="'mine'"):
        SequenceSample.from_default([1], ["a"], {"mine": torch.zeros(1)})
    with pytest.raises(ValueError, match="must be a list of 1 values"):
        SequenceSample.from_default([1], ["a"], {"rewards": torch.zeros(1)}, {"x": [1, 2]})


def broken(**changes):
    """The description of a sample with one item, and something wrong."""
    right = {
        "keys": {"seq"},
        "trailing_shapes": {"seq": ()},
        "dtypes": {"seq": torch.long},
        "ids": ["a"],
        "seqlens": {"seq": [[2]]},
        "data": {"seq": torch.arange(2)},
    }
    return {**right, **changes}


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"ids": ["a", "a"]}, ValueError, "ids must differ"),
        ({"keys": ["seq", "seq"]}, ValueError, "keys must differ"),
        ({"keys": {"seq", "x"}}, KeyError, "seqlens has the keys"),
        ({"seqlens": {"seq": [[2], [1]]}}, ValueError, "of 2 items"),
        ({"seqlens": {"seq": [[2.0]]}}, ValueError, "lists of int"),
        ({"seqlens": {"seq": [[3]]}}, ValueError, "seqlens say"),
        ({"dtypes": {"seq": torch.float32}}, ValueError, "dtypes say"),
        ({"data": {"seq": [0, 1]}}, ValueError, "must be a tensor"),
    ],
)
def test_what_does_not_fit_is_named(changes, kind, message):
    """Ids, keys, lengths, shapes and types are checked when a sample is made; unless it is switched off."""
    with pytest.raises(kind, match=message):
        SequenceSample(**broken(**changes))
    with SequenceSample.disable_validation():
        SequenceSample(**broken(**changes))


def test_where_to_cut_is_checked():
    """Parts follow one another and hold something; sizes and bounds agree."""
    assert SequenceSplitSpec(partitions=[(0, 2), (2, 3)]).sizes == [2, 1]
    for wrong in ({}, {"partitions": [(0, 0)]}, {"partitions": [(1, 2)]}, {"partitions": [(0, 2)], "sizes": [1]}):
        with pytest.raises(ValueError):
            SequenceSplitSpec(**wrong)
