"""Rows of chosen and rejected answers become pairs."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from ludus.algorithms import AlgorithmSettings
from ludus.errors import ConfigError, UserError
from ludus.loop.preferences import preference_batches, read_answers
from ludus.loop.sft import SftSettings
from ludus.text.chat import ChatText

ASK = [{"role": "user", "content": "Guess."}]
LOW = [{"role": "assistant", "content": "10"}]
HIGH = [{"role": "assistant", "content": "15"}]
AGAIN = [*LOW, {"role": "user", "content": "higher"}, *HIGH]


@pytest.fixture
def text(tokenizer_folder: Path) -> ChatText:
    return ChatText.load(tokenizer_folder)


def targets(text: ChatText, row: dict[str, Any], **how: Any) -> list[tuple[float, list[str]]]:
    """Of each answer its side, and what its sequences train."""
    return [
        (
            answer.side,
            [text.tokenizer.decode([each.token_ids[at] for at in each.target_idx]) for each in answer.sequences],
        )
        for answer in read_answers(row, text, **how)
    ]


def test_the_forms_of_rows(text: ChatText) -> None:
    """Messages after a prompt, whole conversations that begin alike, text after text, and one answer with a label."""
    ten, fifteen = "10<|im_end|>", "15<|im_end|>"
    assert targets(text, {"prompt": ASK, "chosen": HIGH, "rejected": LOW}) == [(1, [fifteen]), (-1, [ten])]
    assert targets(text, {"chosen": ASK + HIGH, "rejected": ASK + LOW}) == [(1, [fifteen]), (-1, [ten])]
    end = text.tokenizer.special_tokens["eos_token"]
    assert targets(text, {"prompt": "5 + 5 = ", "chosen": "10", "rejected": "9"}) == [
        (1, ["10" + end]),
        (-1, ["9" + end]),
    ]
    row = {"prompt": ASK, "completion": AGAIN, "label": False}
    assert targets(text, row, is_paired=False) == [(-1, [ten, fifteen])]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"prompt": ASK, "chosen": HIGH}, "row 0 has no 'rejected'; its columns are 'prompt', 'chosen'"),
        ({"prompt": "a", "chosen": HIGH, "rejected": LOW}, "row 0: 'prompt' and 'chosen' must both be text"),
        ({"prompt": ASK, "chosen": ASK, "rejected": LOW}, "row 0: 'chosen' has no message of the assistant's"),
        ({"prompt": ASK, "completion": HIGH, "label": True}, "row 0 has no 'chosen'"),
    ],
)
def test_rows_that_cannot_be_read_are_named(text: ChatText, row: dict[str, Any], says: str) -> None:
    """By their number and what is missing."""
    with pytest.raises(UserError, match=says):
        batches(text, [row])


def batches(text: ChatText, rows: list[dict[str, Any]], name: str = "dpo", **settings: Any) -> list[Any]:
    algorithm = AlgorithmSettings(name=name, **settings.pop("algorithm", {}))
    return list(preference_batches(text, rows, SftSettings(**settings), algorithm=algorithm, row_tokens=512, seed=0))


def test_a_batch_is_the_mean_over_its_pairs(text: ChatText) -> None:
    """Both answers of a pair weigh alike, whatever their length and however many turns they have."""
    rows = [{"prompt": ASK, "chosen": AGAIN, "rejected": LOW}, {"prompt": ASK, "chosen": HIGH, "rejected": LOW}]
    (batch,) = batches(text, rows, shuffle=False)
    (row,) = batch.rows
    weighs: dict[tuple[int, float], float] = {}
    for group, side, weight in zip(row.groups, row.advantages, row.weights, strict=True):
        weighs[group, side] = weighs.get((group, side), 0.0) + weight
    assert weighs == pytest.approx({(0, 1.0): 0.25, (0, -1.0): 0.25, (1, 1.0): 0.25, (1, -1.0): 0.25})
    assert len(set(row.episodes)) == 4 and len(set(row.turns)) == 5


def test_ktos_reference_point_is_measured_on_mismatched_answers(text: ChatText) -> None:
    """Each prompt with the answer before it, weighing nothing; a pair gives two sequences."""
    rows: list[dict[str, Any]] = [
        {"prompt": "a ", "completion": "one", "label": True},
        {"prompt": "b ", "completion": "two", "label": False},
        {"prompt": "c ", "chosen": "three", "rejected": "four"},
    ]
    (batch,) = batches(text, rows, "kto", shuffle=False)
    (row,) = batch.rows
    weighs = dict.fromkeys((1.0, -1.0, 0.0), 0.0)
    for side, weight in zip(row.advantages, row.weights, strict=True):
        weighs[side] += weight
    assert weighs == pytest.approx({1.0: 0.5, -1.0: 0.5, 0.0: 0.0})
    trained = sum(1 for side in row.advantages if side)
    assert row.advantages.count(0.0) == trained and len(set(row.episodes)) == 8


def test_long_pairs_are_left_out_whole(text: ChatText) -> None:
    """Where one answer is too long its pair is; where nothing is left that is an error."""
    rows = [{"prompt": "a ", "chosen": "b", "rejected": "c" * 99}, {"prompt": "a ", "chosen": "b", "rejected": "c"}]
    (batch,) = batches(text, rows, max_tokens=20)
    assert set(batch.rows[0].groups) == {0}
    with pytest.raises(UserError, match="no row has answers within max_tokens"):
        batches(text, rows[:1], max_tokens=20)


def test_only_losses_of_preferences_are_taken(text: ChatText) -> None:
    """Another loss, a correction, minibatches, epochs, what compares with a sampler or is of episodes are refused."""
    row = {"prompt": "a ", "chosen": "b", "rejected": "c"}
    with pytest.raises(ConfigError, match="'clip' does not learn from preferences"):
        batches(text, [row], "grpo")
    with pytest.raises(ConfigError, match=r"set algorithm\.correction=bypass"):
        batches(text, [row], algorithm={"correction": "truncate"})
    for name in ("minibatches", "epochs"):
        with pytest.raises(ConfigError, match=f"{name}=2 is of rollouts"):
            batches(text, [row], algorithm={name: 2})
    own = {"loss": {"kind": "own", "path": "mine.py:loss", "needs": ["minibatch", "pairs"]}}
    for name, algorithm in {
        "kl.weighted": {"kl": {"beta": 0.1, "weighted": True}},
        "second_moment": {**own, "second_moment": 0.04},
        "off_policy_mask": {**own, "off_policy_mask": {"threshold": 0.1}},
    }.items():
        with pytest.raises(ConfigError, match=rf"algorithm\.{name} compares with who did"):
            batches(text, [row], algorithm=algorithm)
    for name, value in {
        "reward_kl": {"coef": 0.1},
        "overlong": {"tokens": 8},
        "dynamic_sampling": True,
        "mask_truncated_completions": True,
        "max_sequence_tokens": 512,
    }.items():
        with pytest.raises(ConfigError, match=rf"algorithm\.{name} is of episodes with rewards"):
            batches(text, [row], algorithm={name: value})


def test_every_row_is_taken_once_an_epoch(text: ChatText) -> None:
    """In another order each time."""
    rows = [{"prompt": "a ", "chosen": "b" * n, "rejected": "c"} for n in range(1, 8)]
    random.Random(0).shuffle(rows)
    made = batches(text, rows, batch_size=3, epochs=2)
    assert [len(set(batch.rows[0].groups)) for batch in made] == [3, 3, 1, 3, 3, 1]
