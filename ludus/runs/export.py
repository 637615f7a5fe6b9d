"""Writes a run's recorded interactions to a file for other tools: JSON lines or Parquet.

Knows: rows of interactions, files.  Knows not: how a row is made.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from ludus.errors import UserError
from ludus.runs.failures import Failure
from ludus.runs.interactions import Row
from ludus.runs.view import encodable

Format = Literal["jsonl", "parquet"]
BATCH_ROWS = 256  # rows of one group in a Parquet file: some megabytes of tokens
# Columns of Parquet whose shape no schema can say: arguments and JSON schemas are what an agent makes them.
AS_TEXT = ("messages", "reply", "tools")


def write_jsonl(rows: Iterable[Row], path: Path) -> int:
    """Write one JSON object per line; returns their number."""
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for count, row in enumerate(rows, start=1):  # noqa: B007  # the count is the result
            file.write(json.dumps(row, separators=(",", ":")) + "\n")
    return count


def write_parquet(rows: Iterable[Row], path: Path) -> int:
    """Write the same rows; messages, replies and tools are JSON text. Returns their number.

    Raises UserError if pyarrow is not installed.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError:
        raise UserError("writing Parquet needs pyarrow: pip install 'ludus[parquet]'") from None
    schema = _schema(pa)
    count = 0
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        as_written = (_encodable({**row, **{name: json.dumps(row[name]) for name in AS_TEXT}}) for row in rows)
        while batch := list(islice(as_written, BATCH_ROWS)):
            writer.write_table(pa.Table.from_pylist(batch, schema))
            count += len(batch)
    return count


def write_failures(failures: Sequence[Failure], path: Path) -> Path | None:
    """Write a line for each group of failed episodes, beside an export; returns the path. None: there are none."""
    beside = path.with_name(f"{path.stem}.failures.jsonl")
    if not failures:
        beside.unlink(missing_ok=True)
        return None
    beside.write_text("".join(json.dumps(asdict(each)) + "\n" for each in failures), encoding="utf-8")
    return beside


WRITERS: Mapping[Format, Callable[[Iterable[Row], Path], int]] = {"jsonl": write_jsonl, "parquet": write_parquet}


def _encodable(row: Row) -> Row:
    """The row with lone surrogates replaced: JSON can write them, UTF-8 cannot."""
    return {name: encodable(each) if isinstance(each, str) else each for name, each in row.items()}


def _schema(pa: Any) -> Any:
    text, number, ids = pa.string(), pa.float64(), pa.list_(pa.int64())
    columns = dict.fromkeys(("session_id", "group_id", "outcome", "reason", "agent"), text)
    columns |= {"completion_ids": pa.list_(text), "rewards": pa.list_(number)}
    columns |= dict.fromkeys(("follows", *AS_TEXT), text)
    columns |= {"token_ids": ids, "loss_mask": pa.list_(pa.int8()), "logprobs": pa.list_(number), "versions": ids}
    columns |= {"temperature": number, "ended_by": text}
    return pa.schema(columns | dict.fromkeys(("started_at", "finished_at"), number))
