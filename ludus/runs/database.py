"""An SQLite file, for several threads of one process.

Knows: SQLite.  Knows not: what is in it, which process may write it.
Invariants: a committed transaction survives `kill -9` and a power cut, completely or not at all; a file created here is
readable by its user only.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import weakref
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Self

logger = logging.getLogger(__name__)


class Database:
    """All methods raise what SQLite raises. SQL has `crc32(blob)`."""

    def __init__(self, db: sqlite3.Connection) -> None:
        """Use `open` or `temporary`."""
        self._db, self._lock = db, threading.RLock()
        # who loads a run to look at it leaves it to the garbage collector; Python 3.13 warns of connections left open
        weakref.finalize(self, db.close).atexit = False
        db.create_function("crc32", 1, lambda data: zlib.crc32(data) if isinstance(data, bytes) else None)

    @classmethod
    def open(cls, path: Path, *, reads_only: bool = False) -> Self:
        """Open the file, or create it. reads_only: never write to it."""
        if not os.access(path.parent, os.W_OK):
            return cls(_open_fixed(path))
        if not (reads_only or path.exists()):  # for the user alone, and so are the files that SQLite makes beside it
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        if reads_only:
            return cls(_connect(path, "?mode=ro"))
        return cls(_connect(path, "", "PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL"))

    @classmethod
    def temporary(cls) -> Self:
        """An empty database without a name, which is deleted when it is closed."""
        return cls(sqlite3.connect("", isolation_level=None, check_same_thread=False))

    def create(self, schema: str) -> None:
        self._db.executescript(schema)

    def rows(self, sql: str, values: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._db.execute(sql, values).fetchall()

    def damage(self) -> str | None:
        """What is wrong with the file, in words. None: it is consistent. Reads the whole file."""
        try:
            ((said,),) = self.rows("PRAGMA quick_check(1)")
        except sqlite3.OperationalError:  # not the file is at fault
            raise
        except sqlite3.DatabaseError as error:
            return str(error)
        return None if said == "ok" else " ".join(str(said).replace("*** in database main ***", "").split())

    def copy_to(self, path: Path) -> None:
        """Copy everything to a new file, readable by the user only, and synced when this returns."""
        with closing(Database.open(path)) as copy, self._lock:
            self._db.backup(copy._db)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # SQLite has rolled back by itself when the disk is full
                    self._db.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Closing twice is allowed."""
        with self._lock:
            self._db.close()


def _connect(path: Path, options: str, *first: str) -> sqlite3.Connection:
    """A connection that has executed these statements."""
    uri = path.absolute().as_uri() + options
    db = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=30.0)
    try:
        for sql in first:
            db.execute(sql)
    except BaseException:
        db.close()
        raise
    return db


def _open_fixed(path: Path) -> sqlite3.Connection:
    """A connection to a file in a folder that cannot be written: on a read-only disk, or another user's.

    Whoever writes it has its newest data in the journal beside it, which SQLite reads if its index is there too; what
    nobody writes is read without them.
    """
    journal = path.with_name(f"{path.name}-wal")
    if journal.is_file() and journal.stat().st_size:
        try:
            return _connect(path, "?mode=ro", "SELECT 1 FROM sqlite_master")
        except sqlite3.OperationalError as error:
            logger.warning(
                "%s: its newest data are in %s, which cannot be read in a folder that cannot be written (%s); copy the "
                "folder elsewhere to see them",
                path,
                journal.name,
                error,
            )
    return _connect(path, "?mode=ro&immutable=1")
