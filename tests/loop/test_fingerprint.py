"""Rows that were edited are noticed, and what is different is said."""

import json
from dataclasses import asdict

import numpy
import pytest

from ludus.loop.fingerprint import Fingerprint

ROWS = [{"question": f"{number} + 1", "answer": number + 1} for number in range(200)]


def edited(number, **values):
    return [{**row, **values} if idx == number else row for idx, row in enumerate(ROWS)]


def test_equal_rows_have_equal_fingerprints():
    """Through a checkpoint's JSON too, with values that JSON does not hold, and with none at all."""
    before = Fingerprint.of(ROWS)
    kept = Fingerprint.of_json(json.loads(json.dumps(asdict(before))))
    assert kept == before and kept.difference(Fingerprint.of([dict(row) for row in ROWS])) is None
    rows = [[{"image": object(), "ids": numpy.arange(length), 7: b"raw", (1, 2): 0}] for length in (3, 3, 4)]
    first, same, other = map(Fingerprint.of, rows)
    assert first == same and first != other
    assert Fingerprint.of([]) == Fingerprint.of([])


def test_rows_of_a_library_whose_slices_are_columns():
    """A Hugging Face dataset is read row by row, as every other sequence."""
    datasets = pytest.importorskip("datasets")
    assert Fingerprint.of(datasets.Dataset.from_list(ROWS)) == Fingerprint.of(ROWS)


@pytest.mark.parametrize(
    ("rows", "difference"),
    [
        (ROWS[:-1], "there were 200 rows, and there are 199 now"),
        ([{"prompt": 1}, *ROWS[1:]], "the columns question, answer, and has prompt now"),
        (edited(130, answer=7), "of the rows 128 to 131 "),
        (edited(199, question="?"), "of the rows 196 to 199 "),
        ([ROWS[1], ROWS[0], *ROWS[2:]], "of the rows 0 to 3 "),
    ],
    ids=["fewer", "columns", "an answer", "the last", "another order"],
)
def test_what_is_different_is_said(rows, difference):
    """Numbers of rows, columns, and where a value was changed."""
    found = Fingerprint.of(ROWS).difference(Fingerprint.of(rows))
    assert found is not None and difference in found
