"""Files of other frameworks, read as plain values.

Knows: Parquet, JSON lines, old YAML.  Knows not: what is in them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from ludus.api.rows import parse_json, read_file
from ludus.errors import UserError

Row = dict[str, Any]


def read_rows(path: Path) -> list[Row]:
    """Rows of a .parquet, .jsonl or .json file. Raises UserError that says what is wrong with it."""
    if path.suffix not in (".parquet", ".jsonl", ".json"):
        raise UserError(f"{str(path)!r} is no file of rows; allowed: .parquet, .jsonl, .json")
    return [dict(row) for row in read_file(path, "the import")]


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {str(path)!r}: {error}") from None


def json_lines(text: str, path: Path) -> Iterator[Any]:
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            yield parse_json(line, f"line {number} of {str(path)!r}")


def json_lines_or_yaml(text: str, path: Path) -> list[Any]:
    """JSON lines, or the YAML list that ART wrote before it."""
    try:
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    except json.JSONDecodeError as broken:
        try:
            loaded = yaml.safe_load(text)
        except yaml.YAMLError:
            loaded = None
        if not isinstance(loaded, list):
            raise UserError(f"{str(path)!r} is neither JSON lines ({broken}) nor a list in YAML") from None
        return loaded
