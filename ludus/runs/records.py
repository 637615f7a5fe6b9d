"""The schema of `run.db`, its integrity check, and the recovery of episodes from a damaged file.

Knows: SQLite and its file format, encoded episodes.  Knows not: the run's other files, who writes.
Invariants: a damaged file is never written to; only episodes with a matching checksum are recovered from it.
"""

from __future__ import annotations

import shutil
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

from ludus.processes.files import set_aside
from ludus.runs.codec import FORMAT, decode_episode, encode_episode
from ludus.runs.database import Database
from ludus.runs.view import encodable
from ludus.types import Episode

NAME = "run.db"
_WAL = f"{NAME}-wal"
_COMPANIONS = (_WAL, f"{NAME}-shm")
_NEW = f"{NAME}.part"
"""The recovered data of a damaged file, before it replaces that file."""
_SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS episodes (
    num INTEGER PRIMARY KEY,
    id TEXT NOT NULL,
    step INTEGER,                -- NULL: finished outside a training step
    group_id TEXT NOT NULL,
    task_id TEXT NOT NULL,
    is_eval INTEGER NOT NULL,
    outcome TEXT NOT NULL,
    reward REAL,                 -- sum over turns; NULL: no turn was given a reward
    num_turns INTEGER NOT NULL,
    num_sampled_tokens INTEGER NOT NULL,
    finished_at REAL NOT NULL,
    record BLOB NOT NULL,        -- as ludus.runs.codec writes it
    checksum INTEGER NOT NULL    -- CRC-32 of the record
);
CREATE INDEX IF NOT EXISTS episodes_by_id ON episodes (id);
CREATE INDEX IF NOT EXISTS episodes_by_step ON episodes (step);
CREATE TABLE IF NOT EXISTS credit (
    turn_id TEXT PRIMARY KEY,
    step INTEGER NOT NULL,
    advantage REAL,              -- NULL: not trained, and `mask` says why
    mask TEXT
);
CREATE TABLE IF NOT EXISTS batches (
    step INTEGER PRIMARY KEY,
    record TEXT NOT NULL,        -- JSON: which episodes the step was given, and in which groups
    checksum INTEGER NOT NULL    -- CRC-32 of the record
);
PRAGMA user_version = {FORMAT};
COMMIT;
"""
INSERT = """
INSERT INTO episodes (id, step, group_id, task_id, is_eval, outcome, reward, num_turns, num_sampled_tokens,
                      finished_at, record, checksum) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
INSERT_CREDIT = "INSERT OR REPLACE INTO credit (turn_id, step, advantage, mask) VALUES (?, ?, ?, ?)"
INSERT_BATCH = "INSERT OR REPLACE INTO batches (step, record, checksum) VALUES (?, ?, ?)"
_PAGE_BYTES = 4096
_MOST_ROWS_A_PAGE = 100
"""The smallest rows, those of credit, have about 40 bytes."""
_NUM_PAGES = slice(28, 32)
"""Bytes of the file's header with the number of pages."""
_OF_THE_FILE = (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
"""Codes of errors that are caused by a file's content, missing tables included."""
_MOST_FORMATS = 1000
"""No version writes a higher format number, so such a header is damaged."""


@dataclass(frozen=True, slots=True)
class Records:
    """The episodes and the credit of a run."""

    db: Database
    damage: str | None = None
    """What is wrong with the file; `db` is then a copy with the recovered data. None: `db` is the file itself."""


@dataclass(frozen=True, slots=True)
class FinishedEpisode:
    """A finished episode, encoded."""

    record: bytes
    step: int | None = None
    """The training step that the episode was played for. None: it was played for no step."""

    @classmethod
    def of(cls, episode: Episode, step: int | None = None) -> Self:
        return cls(encode_episode(episode), step)


def row_of(episode: Episode, finished: FinishedEpisode) -> tuple[object, ...]:
    """Values for INSERT."""
    # SQLite stores no lone surrogates, which a row may have in its id; the record keeps them.
    own, group, task = (encodable(name) for name in (episode.id, episode.group_id, episode.task_id))
    return (
        *(own, finished.step, group, task, episode.is_eval, episode.outcome.kind),
        *(episode.reward, len(episode.session.turns), episode.session.num_sampled_tokens, episode.finished_at),
        *(finished.record, zlib.crc32(finished.record)),
    )


def open_records(folder: Path, *, is_begun: bool, reads_only: bool = False, checks: bool = True) -> Records:
    """Open the records in the folder; creates the file if the run has not begun. Raises sqlite3.Error if the disk
    cannot be read or written.

    checks: verify the whole file; False: verify only that it is a `run.db`.
    """
    path, new = folder / NAME, folder / _NEW
    if new.is_file() and not (path.exists() or reads_only):  # the damaged file is moved only when this is complete
        new.replace(path)
    if is_begun and not (path.is_file() and path.stat().st_size):
        return _salvaged(path, "is empty" if path.exists() else "is missing")
    try:
        db = Database.open(path, reads_only=reads_only)
        try:
            if not (is_begun or reads_only) and db.rows("SELECT NOT EXISTS (SELECT 1 FROM sqlite_master)") == [(1,)]:
                db.create(_SCHEMA)
            wrong = _wrong(db, checks=checks)
        except BaseException:
            db.close()
            raise
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode & 0xFF not in _OF_THE_FILE:
            raise
        return _salvaged(path, f"is damaged ({error})")
    if wrong is None:
        return Records(db)
    db.close()
    return _salvaged(path, f"is damaged ({wrong})")


def replace_damaged(folder: Path, readable: Database) -> None:
    """Replace the run's file by the recovered data; the damaged file is kept under another name."""
    new = folder / _NEW
    new.unlink(missing_ok=True)
    readable.copy_to(new)
    for name in (NAME, *_COMPANIONS):
        if (folder / name).exists():
            set_aside(folder / name)
    new.replace(folder / NAME)


def _wrong(db: Database, *, checks: bool = True) -> str | None:
    """What is wrong with the file. None: it passes SQLite's integrity check, and the records match their checksums."""
    ((found,),) = db.rows("PRAGMA user_version")
    if found != FORMAT and 0 < found < _MOST_FORMATS:
        return None  # a file of another version, which this one cannot check
    header = f"its header names the format {found}" if found else "its header names no format"
    said = header if found != FORMAT else db.damage() if checks else None
    if said is None and checks:
        ((changed,),) = db.rows("SELECT count(*) FROM episodes WHERE crc32(record) IS NOT checksum")
        said = f"{changed:,} episodes are not as they were written" if changed else None
    return said


def _salvaged(path: Path, problem: str) -> Records:
    readable = Database.temporary()
    readable.create(_SCHEMA)
    with TemporaryDirectory(prefix="ludus-damaged-") as scratch:
        copy = Path(scratch) / NAME
        _copy_with_first_page(path, copy)
        with suppress(sqlite3.DatabaseError), closing(Database.open(copy)) as damaged, readable.transaction() as db:
            for values in _rows(damaged, copy, "episodes", "record, checksum, step"):
                _take_episode(db, *values)
            for values in _rows(damaged, copy, "credit", "turn_id, step, advantage, mask"):
                with suppress(sqlite3.IntegrityError):
                    db.execute(INSERT_CREDIT, values)
            for step, record, checksum in _rows(damaged, copy, "batches", "step, record, checksum"):
                if isinstance(record, str) and zlib.crc32(record.encode()) == checksum:
                    db.execute(INSERT_BATCH, (step, record, checksum))
    ((found,),) = readable.rows("SELECT count(*) FROM episodes")
    return Records(readable, f"{NAME} {problem}: {found:,} episodes of it can be read")


def _take_episode(db: sqlite3.Connection, record: Any, checksum: Any, step: Any) -> None:
    """Insert an episode, with columns computed from its record: in a damaged page they may be another row's."""
    if isinstance(record, bytes) and zlib.crc32(record) == checksum:
        episode = decode_episode(record)
        db.execute(INSERT, row_of(episode, FinishedEpisode(record, step if isinstance(step, int) else None)))


def _rows(db: Database, path: Path, table: str, columns: str) -> Iterator[tuple[Any, ...]]:
    """The rows that can be read, in order. Rows on damaged pages are skipped."""
    most = sum(each.stat().st_size for each in path.parent.iterdir()) // _PAGE_BYTES * _MOST_ROWS_A_PAGE
    try:
        ((last,),) = db.rows(f"SELECT max(rowid) FROM {table} NOT INDEXED")
    except sqlite3.DatabaseError:
        last = most
    for number in range(1, min(last or 0, most) + 1):
        with suppress(sqlite3.DatabaseError):
            yield from db.rows(f"SELECT {columns} FROM {table} NOT INDEXED WHERE rowid = ?", (number,))


def _copy_with_first_page(path: Path, copy: Path) -> None:
    """Copy the file and its journal, with the first page (header and schema) replaced by that of a new file.

    SQLite refuses a file with a damaged header, and discards the journal of an empty one.
    """
    with closing(Database.open(copy)) as fresh:
        fresh.create(_SCHEMA)
    first_page = bytearray(copy.read_bytes()[:_PAGE_BYTES])
    first_page[_NUM_PAGES] = bytes(4)  # 0: SQLite takes the number from the size of the file
    if path.is_file():
        shutil.copyfile(path, copy)
    with copy.open("r+b") as file:
        file.write(first_page)
    wal = path.with_name(_WAL)
    if wal.is_file():
        shutil.copyfile(wal, copy.with_name(_WAL))
