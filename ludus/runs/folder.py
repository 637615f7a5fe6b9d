"""Reads the small files of a run's folder even if they are damaged: config.yaml, metrics.jsonl, summary.json; and finds
the trained model.

Knows: YAML, JSON.  Knows not: what the values are for, who wrote them.
"""

from __future__ import annotations

import json
import logging
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ludus.errors import UserError
from ludus.processes.checksums import Checksums, damage
from ludus.processes.files import write_whole
from ludus.settings import read_yaml

logger = logging.getLogger(__name__)

LOCK = "writer.lock"
"""File that is locked by the process that writes the run."""

_CHECKSUM = "# CRC-32 of the lines below: "
"""First line of config.yaml, because half of the file would be a valid configuration too. Who edits the file by hand
removes the line."""
_FIRST_LINE = re.compile(rf"{_CHECKSUM}([0-9a-f]{{8}})\n".encode())
_SECRET = re.compile(
    r"(?:.*_)?(?:(?:api|access|secret|private)_?key|(?:api|access|auth|bearer|hf)_?token|password|secret|headers)|token"
)
"""Names of values that let in who knows them; `api_key_env` names no more than a variable."""
_IN_URL = re.compile(r"(://[^/\s:@]*:)[^/\s@]+(?=@)")
HIDDEN = "…"
"""In the place of a secret."""


def is_begun(folder: Path) -> bool:
    """Whether the run was begun; its run.db exists before that."""
    return any((folder / name).is_file() for name in (LOCK, "metrics.jsonl"))


def write_config(folder: Path, text: str) -> None:
    """Replace the run's configuration. Raises OSError if the disk fails."""
    write_whole(folder / "config.yaml", f"{_CHECKSUM}{zlib.crc32(text.encode()):08x}\n{text}")


def config_text(folder: Path) -> str:
    """The text given to `write_config`, or what is left of it."""
    path = folder / "config.yaml"
    content = path.read_bytes() if path.is_file() else b""
    return _FIRST_LINE.sub(b"", content, count=1).decode(errors="replace")


def read_config(folder: Path) -> dict[str, Any]:
    """The values in the run's configuration. Raises UserError if the file is damaged."""
    path = folder / "config.yaml"
    if not path.is_file():
        raise UserError(f"{path.name} is missing")
    content = path.read_bytes()
    known = _FIRST_LINE.match(content)
    if known and zlib.crc32(content[known.end() :]) != int(known[1], 16):
        raise UserError(
            f"{path.name} is damaged: its lines are not those that the first one has the checksum of; if they were "
            "changed on purpose, remove that line"
        )
    try:
        values = read_yaml(path)
    except UserError as error:
        raise UserError(f"{path.name} is damaged: {' '.join(str(error).split())}") from error
    if not (known or isinstance(values.get("model"), dict)):
        raise UserError(f"{path.name} is damaged: it names no model")
    return values


def without_secrets(value: Any, *, is_secret: bool = False) -> Any:
    """The configuration as it may be shown to others: keys, passwords and headers are hidden, whoever they are for."""
    if isinstance(value, dict):
        return {
            name: without_secrets(inner, is_secret=is_secret or _SECRET.fullmatch(str(name).lower()) is not None)
            for name, inner in value.items()
        }
    if isinstance(value, list):
        return [without_secrets(inner, is_secret=is_secret) for inner in value]
    if not (isinstance(value, str) and value):
        return value
    return HIDDEN if is_secret else _IN_URL.sub(rf"\1{HIDDEN}", value)


def read_summary(folder: Path) -> dict[str, Any] | None:
    """The content of summary.json. None: the run has not ended. Raises UserError if it cannot be read."""
    path = folder / "summary.json"
    try:
        values = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError):
        values = None
    if not (isinstance(values, dict) and "ledger" in values):
        raise UserError(f"{path.name} is damaged: it is not the summary of a run")
    return values


def trained_model(folder: Path) -> Path:
    """The folder of the run's trained model. Raises UserError if there is none, or if it is damaged.

    Without a summary the model cannot be verified and is trusted, with a warning if the summary cannot be read.
    """
    model, again = folder / "model", f"ludus train {folder / 'config.yaml'} --resume"
    if not model.is_dir():
        raise UserError(
            f"the run {folder.name!r} has no trained model yet: {str(model)!r} is missing; end its training first "
            f"({again})"
        )
    known: Checksums = {}
    try:
        known = (read_summary(folder) or {}).get("model_files", {})
    except UserError as error:
        logger.warning("%s; whether the model is whole cannot be said", error)
    wrong = damage(model, known)
    if wrong is not None:
        raise UserError(
            f"the model of the run {folder.name!r} is damaged: {wrong}. Save it again from the last checkpoint: {again}"
        )
    return model


RESUMED = "run/resumed"
"""A metric of a step: the run was resumed from there, so earlier lines of later steps are void."""


@dataclass(frozen=True, slots=True)
class MetricLines:
    """The content of lines of metrics.jsonl."""

    rows: list[tuple[int, dict[str, float]]]
    """Steps with their metrics, in order; if several lines have the same metric of a step, the last one counts."""
    num_unreadable: int
    """Unreadable lines, not counting one that a crash cut short."""
    void: frozenset[int]
    """Steps that were thrown away when the run was resumed from an earlier one."""


def read_metrics(folder: Path) -> MetricLines:
    """All metrics of the run."""
    path = folder / "metrics.jsonl"
    return metric_lines(path.read_bytes().splitlines(keepends=True) if path.is_file() else [])


def metric_lines(lines: Iterable[bytes]) -> MetricLines:
    """Lines with their ends."""
    rows: dict[int, dict[str, float]] = {}
    num_unreadable, void = 0, set[int]()
    for line in lines:
        found = metrics_of(line)
        if found is None:
            num_unreadable += line.endswith(b"\n")
            continue
        step, numbers = found
        if numbers.pop(RESUMED, None) is not None:
            later = [each for each in rows if each > step]
            void.update(later)
            for each in later:
                del rows[each]
        if numbers:
            rows.setdefault(step, {}).update(numbers)
    return MetricLines(sorted(rows.items()), num_unreadable, frozenset(void))


def metrics_of(line: bytes) -> tuple[int, dict[str, float]] | None:
    """Step and metrics in a line of metrics.jsonl. None: the line cannot be read."""
    try:
        values = json.loads(line)
        return int(values.pop("step")), {name: float(each) for name, each in values.items()}
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
