"""The report of an import: what was taken and what was not, so that nothing is lost silently.

Knows: names, fates, notes, counts.  Knows not: what is imported.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from ludus.errors import UserError

Fate = Literal["taken", "changed", "not needed", "left out"]
"""changed: taken, but with a somewhat different meaning.  not needed: Ludus does this anyway, or it has no effect.
left out: it had an effect there that nothing has here."""
FATES: tuple[Fate, ...] = ("left out", "changed", "taken", "not needed")
"""In the order of their importance to readers."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One key, column or file of what was imported."""

    name: str
    fate: Fate
    note: str = ""
    """Where it went, or why it was not taken. Empty: it has the same name here, or its value is Ludus's behaviour."""


@dataclass(frozen=True, slots=True)
class ImportReport:
    """Everything that was found, and its fate."""

    source: str
    entries: tuple[Entry, ...]
    written: tuple[str, ...] = ()
    """Files."""

    @property
    def counts(self) -> dict[Fate, int]:
        counted = Counter(entry.fate for entry in self.entries)
        return {fate: counted[fate] for fate in FATES}

    def of(self, fate: Fate) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.entries if entry.fate == fate)

    def to_json(self) -> str:
        return json.dumps({**asdict(self), "counts": self.counts}, indent=2) + "\n"


def by_note(entries: Iterable[Entry]) -> dict[str, list[str]]:
    """Names grouped by their note, in order of appearance."""
    grouped: dict[str, list[str]] = {}
    for entry in entries:
        grouped.setdefault(entry.note, []).append(entry.name)
    return grouped


def write_text(path: Path, text: str, *, replace: bool = False) -> None:
    """Write a file. Raises UserError if it cannot be written, or exists already and `replace` is false."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w" if replace else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UserError(f"{str(path)!r} exists already; remove it, or write elsewhere with --out") from None
    except OSError as error:
        raise UserError(f"cannot write {str(path)!r}: {error.strerror}") from None


def lines(rows: Sequence[object]) -> str:
    """JSON lines."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
