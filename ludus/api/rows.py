"""Reads the rows of a dataset from whatever was given: a sequence, an iterable, a Hugging Face dataset, a file, a
function.

Knows: JSON, CSV, Parquet, import strings.  Knows not: what is in a row.
"""

from __future__ import annotations

import csv
import importlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ludus.errors import UserError
from ludus.import_strings import import_object
from ludus.rollout.mixture import Row

_FORMS = (
    "a sequence or iterable of mappings, a Hugging Face Dataset, a .parquet, .jsonl, .json or .csv file, "
    "or 'pkg.mod:function' that returns rows"
)


def load_rows(source: object, key: str = "dataset") -> Sequence[Row]:
    """The rows of `source`; at least one. `key` is what error messages call it.

    Raises UserError that names what is wrong: the file, the line, the row.
    """
    rows = _from_reference(source, key) if isinstance(source, str | Path) else _from_object(source, key)
    if len(rows) == 0:
        raise UserError(f"{key} has no rows")
    first: object = rows[0]
    if not isinstance(first, Mapping):
        kind = type(first).__name__
        raise UserError(f"row 0 of {key} must be a mapping of columns, but is a {kind}: {first!r:.100}")
    return rows


def _from_object(source: Any, key: str) -> Sequence[Row]:
    if isinstance(source, Mapping):
        splits = ", ".join(map(str, source))
        raise UserError(f"{key} is a mapping of {splits}; pass one of them, such as dataset['train']")
    if callable(source):
        return _from_object(source(), key)
    is_sequence = callable(getattr(source, "__len__", None)) and callable(getattr(source, "__getitem__", None))
    if is_sequence and not isinstance(source, str | bytes):
        rows: Sequence[Row] = source
        return rows
    if isinstance(source, Iterable):
        return list(source)
    raise UserError(f"{key} is {source!r:.100} of type {type(source).__name__}; allowed: {_FORMS}")


def _from_reference(source: str | Path, key: str) -> Sequence[Row]:
    path = Path(source).expanduser()
    if path.suffix not in _READERS:
        if isinstance(source, str) and ":" in source:
            return _from_object(import_object(source), key)
        raise UserError(f"{key}={str(source)!r} is neither a file that can be read nor a function; allowed: {_FORMS}")
    return read_file(path, key)


def read_file(path: Path, key: str) -> Sequence[Row]:
    """The rows of a file; none if it is empty. key: what error messages call it.

    Raises UserError that names what is wrong: the file, the line, the row.
    """
    try:
        return _READERS[path.suffix](path)
    except OSError as error:
        where = f"(looked from {Path.cwd()})"
        raise UserError(f"{key}: cannot read the file {str(path)!r}: {error.strerror} {where}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{key}: {str(path)!r} is no text in UTF-8: {error.reason} at byte {error.start:,}") from None


def _read_jsonl(path: Path) -> Sequence[Row]:
    rows = []
    for number, line in enumerate(_text(path).split("\n"), start=1):
        if line.strip():
            row = parse_json(line, f"line {number} of {str(path)!r}")
            if not isinstance(row, Mapping):
                raise UserError(f"line {number} of {str(path)!r} must be a JSON object, but is {line:.100}")
            rows.append(row)
    return rows


def _read_json(path: Path) -> Sequence[Row]:
    rows = parse_json(_text(path), repr(str(path)))
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        held = f"{rows!r:.100}" if isinstance(rows, list) else f"a {type(rows).__name__}"
        raise UserError(f"{str(path)!r} must hold a JSON array of objects, but holds {held}")
    return rows


def _read_csv(path: Path) -> Sequence[Row]:
    return list(csv.DictReader(_text(path).splitlines()))


def _read_parquet(path: Path) -> Sequence[Row]:
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ModuleNotFoundError:
        raise UserError("reading Parquet needs pyarrow: pip install 'ludus[parquet]'") from None
    with path.open("rb") as file:
        try:
            rows: list[Row] = parquet.read_table(file).to_pylist()
        except ValueError as error:  # pyarrow's errors for broken files are ValueErrors
            raise UserError(f"{str(path)!r} is not valid Parquet: {error}") from None
    return rows


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8-sig")


def parse_json(text: str, where: str) -> Any:
    """The value of a text. where: what error messages call it. Raises UserError if it is no JSON."""
    try:
        return json.loads(text)
    except RecursionError:
        raise UserError(f"{where} is not valid JSON: it is nested too deep") from None
    except ValueError as error:  # also raised for a number with more digits than Python reads
        raise UserError(f"{where} is not valid JSON: {error}") from None


_READERS: Mapping[str, Callable[[Path], Sequence[Row]]] = {
    ".jsonl": _read_jsonl,
    ".json": _read_json,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
}
