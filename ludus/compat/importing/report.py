"""What an import took and what it did not, so that nothing is lost in silence.

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
"""changed: taken, but what it says or does is not quite the same.  not needed: it acts here by itself, or on nothing.
left out: it did something there that nothing does here."""
FATES: tuple[Fate, ...] = ("left out", "changed", "taken", "not needed")
"""In the order in which a reader wants to know them."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One key, column or file of what was imported."""

    name: str
    fate: Fate
    note: str = ""
    """Where it went, or why it did not. Empty: it is taken under its own name, or its value is what is done anyway."""


@dataclass(frozen=True, slots=True)
class ImportReport:
    """Everything that was found, and what became of it."""

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
    """Names by what is said of them, in the order in which they were found."""
    grouped: dict[str, list[str]] = {}
    for entry in entries:
        grouped.setdefault(entry.note, []).append(entry.name)
    return grouped


def write_text(path: Path, text: str, *, replace: bool = False) -> None:
    """Raises UserError if the file cannot be written, or is there already and must not be replaced."""
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
