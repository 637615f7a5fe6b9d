"""Converts packed rows to JSON values and back.

Knows: the fields of a row.  Knows not: who sends them where.
Invariant: the result equals the original, every float to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

from ludus.algorithms.pack import LogitProcessing, PackedRow


def rows_to_json(rows: Sequence[PackedRow]) -> list[dict[str, Any]]:
    return [{field.name: _value(row, field.name) for field in fields(PackedRow)} for row in rows]


def rows_from_json(values: Sequence[dict[str, Any]]) -> tuple[PackedRow, ...]:
    return tuple(PackedRow(**{name: _read(name, value) for name, value in each.items()}) for each in values)


def _value(row: PackedRow, name: str) -> Any:
    if name == "logit_processings":
        return [
            None if logit_processing is None else asdict(logit_processing) for logit_processing in row.logit_processings
        ]
    return getattr(row, name)


def _read(name: str, value: Any) -> Any:
    if name == "logit_processings":
        return tuple(None if each is None else _logit_processing(each) for each in value)
    if name == "kept_ids":
        return tuple(map(tuple, value))
    return tuple(value) if isinstance(value, list) else value


def _logit_processing(value: dict[str, Any]) -> LogitProcessing:
    return LogitProcessing(**{**value, "logit_bias": tuple((token, bias) for token, bias in value["logit_bias"])})
