"""verl's rows become rows that agents are given here, and a report of every column.

Knows: verl's columns, and what Parquet does to them.  Knows not: files, command lines, agent loops.
Invariants: a row keeps its columns' names, so that an agent loop reads what it read there; every column and every row
that is left out is in the report.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ludus.compat.importing.files import Row
from ludus.compat.importing.report import Entry

_MEDIA = ("images", "videos", "audios", "image", "video", "audio", "multi_modal_data")
_PADDED = ("tools_kwargs", "interaction_kwargs")
"""Mappings whose keys differ from row to row. Parquet gives each row the keys of all, with nothing in them."""
_NOTES = {
    "prompt": "the messages an episode begins with; agent loops get them as raw_prompt",
    "data_source": "which verifier scores the answer",
    "reward_model": "what verifiers compare the answer with",
    "agent_name": "which agent loop plays the row",
    "extra_info": "passed to the agent loop",
}
_INSIDE = {
    "tools_kwargs": "arguments of tools",
    "tool_selection": "tools of the row",
    "interaction_kwargs": "simulated users",
}
"""By key of `extra_info`."""
MOST_ROWS_NAMED = 20


@dataclass(frozen=True, slots=True)
class ImportedRows:
    """Rows as plain JSON, and what became of each column."""

    rows: tuple[Row, ...]
    entries: tuple[Entry, ...]


def import_verl(rows: Sequence[Row]) -> ImportedRows:
    """verl's rows as rows of Ludus. A row without a usable prompt is left out."""
    taken: list[Row] = []
    wrong: list[Entry] = []
    kept: Counter[str] = Counter()
    lost: dict[str, str] = {}
    for index, row in enumerate(rows):
        messages = _messages(row.get("prompt", row.get("raw_prompt")))
        if isinstance(messages, str):
            wrong.append(Entry(f"row {index}", "left out", messages))
            continue
        clean: Row = {}
        for name, value in row.items():
            if value is None:
                continue
            if name in _MEDIA and value:
                lost[name] = "Ludus trains on text alone"
            elif _holds_bytes(value):
                lost[name] = "it holds bytes, which a row of JSON cannot"
            else:
                clean[name] = messages if name in ("prompt", "raw_prompt") else _unpadded(name, value)
                kept[name] += 1
        taken.append(clean)
    entries = [Entry(name, "taken", _note(name, kept[name], taken)) for name in kept]
    entries += [Entry(name, "left out", why) for name, why in lost.items()]
    if any(isinstance(row.get("prompt"), str) for row in rows):
        entries.append(Entry("prompt", "changed", "a text became the message of a user"))
    entries += _inside_extra_info(taken)
    if len(wrong) > MOST_ROWS_NAMED:
        more = f"{wrong[MOST_ROWS_NAMED].note}, and others like it"
        wrong[MOST_ROWS_NAMED:] = [Entry(f"{len(wrong) - MOST_ROWS_NAMED} more rows", "left out", more)]
    return ImportedRows(tuple(taken), (*entries, *wrong))


def _messages(prompt: object) -> list[Row] | str:
    """The messages of a prompt, or what is wrong with it."""
    if isinstance(prompt, str) and prompt:
        return [{"role": "user", "content": prompt}]
    if not isinstance(prompt, list) or not prompt:
        return f"its prompt is {prompt!r:.80}; it must be messages, or a text"
    messages = []
    for message in prompt:
        if not isinstance(message, Mapping) or not message.get("role"):
            return f"its prompt holds {message!r:.80}, which is no message with a role"
        messages.append({name: value for name, value in message.items() if value is not None})
    return messages


def _unpadded(name: str, value: Any, is_padded: bool = False) -> Any:
    if not isinstance(value, Mapping):
        return value
    is_padded = is_padded or name in _PADDED
    kept = {inner: below for inner, below in value.items() if not (is_padded and below is None)}
    return {inner: _unpadded(inner, below, is_padded) for inner, below in kept.items()}


def _holds_bytes(value: Any) -> bool:
    inside = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return isinstance(value, bytes) or any(map(_holds_bytes, inside))


def _note(name: str, count: int, rows: Sequence[Row]) -> str:
    note = _NOTES.get(name, "passed to the agent loop")
    if name in ("data_source", "agent_name"):
        note += f": {_counted(str(row[name]) for row in rows if name in row)}"
    missing = len(rows) - count
    return f"{note}; {missing:,} rows have none" if missing else note


def _inside_extra_info(rows: Iterable[Row]) -> Iterator[Entry]:
    infos = [row["extra_info"] for row in rows if isinstance(row.get("extra_info"), Mapping)]
    for name, what in _INSIDE.items():
        given = [info[name] for info in infos if info.get(name)]
        if given and name == "interaction_kwargs":
            given = [[each.get("name")] for each in given]
        if given:
            yield Entry(f"extra_info.{name}", "taken", f"{what}: {_counted(str(n) for names in given for n in names)}")


def _counted(names: Iterable[str]) -> str:
    return ", ".join(f"{name} ({count:,})" for name, count in sorted(Counter(names).items()))
