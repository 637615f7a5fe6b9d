from __future__ import annotations

import zlib
from array import array
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.errors import InternalError, UserError
from ludus.runs.store import RunStore
from ludus.runs.tokens import FOLDER, TokenColumns, discard_tokens, path_of, read_tokens, recorded_steps, write_tokens

COLUMNS = {"loss": array("f", [0.5, -0.25, 1.0, 2.0]).tobytes(), "weight": array("f", [0.25] * 4).tobytes()}
TOKENS = TokenColumns([(3, 1), (0, 3)], COLUMNS, num_minibatches=2)
TURNS = {0: ("turn-a", (0, 1, 2)), 3: ("turn-b", (4,)), 5: ("turn-c", (0,))}


def test_what_was_written_is_read(tmp_path: Path) -> None:
    """Turns by their ids, each token at its place among those sampled, losses as their share of the step's."""
    write_tokens(tmp_path, 7, TOKENS, TURNS)
    tokens = read_tokens(tmp_path, 7)
    assert tokens is not None and tokens.step == 7 and tokens.num_trained == 4
    assert tokens.loss == (0.5 - 0.25 + 1 + 2) / 2
    assert tokens.of_turn("turn-b") == {4: {"loss": 0.25, "weight": 0.125}}
    assert tokens.of_turn("turn-a") == {n: {"loss": each, "weight": 0.125} for n, each in enumerate((-0.125, 0.5, 1.0))}
    assert tokens.of_turn("turn-c") == {}
    assert read_tokens(tmp_path, 8) is None and recorded_steps(tmp_path) == [7]


@given(at=st.integers(min_value=0), bit=st.integers(0, 7))
def test_a_bit_that_was_flipped_anywhere_is_found(at: int, bit: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The file is then refused by name, and so is one that was cut, or is empty."""
    folder = tmp_path_factory.mktemp("run")
    write_tokens(folder, 1, TOKENS, TURNS)
    path = path_of(folder, 1)
    content = bytearray(path.read_bytes())
    content[at % len(content)] ^= 1 << bit
    for damaged in (bytes(content), bytes(content[: at % len(content)])):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=r"tokens/step-000001\.bin is damaged: it does not hold what was written"):
            read_tokens(folder, 1)


def test_a_file_of_another_version_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    content = bytes([9]) + b"whatever"
    path_of(tmp_path, 1).write_bytes(zlib.crc32(content).to_bytes(4, "little") + content)
    with pytest.raises(UserError, match="another version of Ludus: it has the format 9"):
        read_tokens(tmp_path, 1)


def test_columns_are_of_equal_length() -> None:
    """Of as many tokens as the turns have."""
    with pytest.raises(InternalError, match=r"columns of 2 tokens .* got \{'loss': 16, 'weight': 16\}"):
        TokenColumns([(0, 2)], COLUMNS)


def test_steps_that_are_trained_again_lose_their_record(tmp_path: Path) -> None:
    """Who goes on from step 1 keeps what it made of its tokens, and nothing of what is learned again."""
    with RunStore.create(tmp_path, "run", "model: {path: x}\n") as store:
        for step in (1, 2, 3):
            store.add_tokens(step, TOKENS, TURNS)
    with RunStore.go_on(tmp_path / "run", "model: {path: x}\n", step=1) as store:
        assert recorded_steps(store.folder) == [1] and store.tokens(1) is not None and store.tokens(2) is None
    discard_tokens(tmp_path / "nothing", after=0)
