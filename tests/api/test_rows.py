"""Rows from everything users have, and clear words about what they have not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from ludus.api.rows import load_rows
from ludus.errors import UserError

ROWS = [{"n": 1}, {"n": 2}]


class Columnar:
    """Looks like a Hugging Face dataset: it has a length, and rows by index."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, idx: int) -> dict[str, int]:
        return ROWS[idx]


def make_rows() -> list[dict[str, int]]:
    return ROWS


@pytest.mark.parametrize("source", [ROWS, tuple(ROWS), iter(ROWS), Columnar(), make_rows])
def test_sequences_iterables_datasets_and_functions_are_rows(source: Any) -> None:
    """Whatever has rows gives them."""
    rows = load_rows(source)
    assert [rows[0], rows[1]] == ROWS and len(rows) == 2


@pytest.mark.parametrize(
    ("name", "text", "first"),
    [
        ("rows.jsonl", '{"n": 1}\n\n{"n": 2}\n', {"n": 1}),
        ("rows.json", '[{"n": 1}, {"n": 2}]', {"n": 1}),
        ("rows.csv", "n,word\n1,a\n2,b\n", {"n": "1", "word": "a"}),
    ],
)
def test_files_are_read_by_their_suffix(tmp_path: Path, name: str, text: str, first: object) -> None:
    """.jsonl, .json and .csv files are rows; empty lines do not count."""
    (tmp_path / name).write_text(text)
    rows = load_rows(str(tmp_path / name))
    assert rows[0] == first and len(rows) == 2


def test_parquet_is_read_with_its_nested_columns(tmp_path: Path) -> None:
    """Lists and structures come back as Python has them; a broken file is named."""
    rows = [{"prompt": [{"role": "user", "content": "2+2"}], "extra_info": {"index": n}} for n in range(3)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "rows.parquet")
    assert load_rows(tmp_path / "rows.parquet") == rows
    (tmp_path / "broken.parquet").write_text("no table")
    with pytest.raises(UserError, match=r"broken.parquet' is not valid Parquet"):
        load_rows(tmp_path / "broken.parquet")


def test_a_function_is_named_by_an_import_string(tmp_path: Path) -> None:
    """'path/file.py:function' is called for its rows."""
    (tmp_path / "my_rows_file.py").write_text("def rows():\n    return [{'n': 5}]\n")
    assert load_rows(f"{tmp_path}/my_rows_file.py:rows") == [{"n": 5}]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ([], "train has no rows"),
        ([1, 2], "row 0 of train must be a mapping of columns, but is a int: 1"),
        ({"train": ROWS, "test": ROWS}, "train is a mapping of train, test; pass one of them"),
        (7, "train is 7 of type int"),
        ("missing/rows.jsonl", "cannot read the file 'missing/rows.jsonl': No such file"),
        ("rows.arrow", "neither a file that can be read nor a function"),
    ],
)
def test_what_has_no_rows_is_named(source: Any, message: str) -> None:
    """Each mistake is told with the key, the value, and what is allowed."""
    with pytest.raises(UserError, match=message):
        load_rows(source, "train")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("rows.jsonl", '{"n": 1}\n{"n": \n', "line 2 of .*rows.jsonl.* is not valid JSON"),
        ("rows.jsonl", '{"n": 1}\n[2]\n', "line 2 of .*rows.jsonl.* must be a JSON object"),
        ("rows.jsonl", '{"n": 1}\n{"n": ' + "[" * 100_000, "line 2 of .*rows.jsonl.* nested too deep"),
        ("rows.jsonl", '{"n": ' + "1" * 5000 + "}", "line 1 of .*rows.jsonl.* is not valid JSON.*digits"),
        ("rows.json", '{"n": 1}', "must hold a JSON array of objects, but holds a dict"),
    ],
)
def test_broken_files_are_named_with_the_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    """The file and the line of a mistake are in the error."""
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=message):
        load_rows(tmp_path / name)


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    """With the byte that is none."""
    (tmp_path / "rows.jsonl").write_bytes(b'{"n": 1}\n\xff')
    with pytest.raises(UserError, match=r"rows.jsonl.* is no text in UTF-8: .* at byte 9"):
        load_rows(tmp_path / "rows.jsonl")


def test_only_a_line_feed_ends_a_row(tmp_path: Path) -> None:
    """Texts may have separators of lines in them, which JSON does not escape."""
    row = {"n": "a\u2028b\u2029c\x85d"}
    (tmp_path / "rows.jsonl").write_text("\r\n".join([json.dumps(row, ensure_ascii=False)] * 2), encoding="utf-8")
    assert [*load_rows(tmp_path / "rows.jsonl")] == [row, row]
