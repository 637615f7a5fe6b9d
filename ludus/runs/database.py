"""A file of SQLite, for several threads of one process.

Knows: SQLite.  Knows not: what is in it, which process may write it.
Invariants: what a transaction has written survives `kill -9` and a power cut, all of it or nothing; a file that is made
here can be read by its user alone.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Database:
    """All methods raise what SQLite raises."""

    def __init__(self, path: Path, *, reads_only: bool = False) -> None:
        """reads_only: nothing is written to the file, whoever writes it meanwhile."""
        self._lock = threading.RLock()
        # On a read-only disk it can still be read; SQLite must then not look for its journal.
        is_fixed = not os.access(path.parent, os.W_OK)
        options = "?mode=ro&immutable=1" if is_fixed else "?mode=ro" if reads_only else ""
        if not (options or path.exists()):  # for the user alone, and so are the files that SQLite makes beside it
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        uri = path.absolute().as_uri() + options
        self._db = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=30.0)
        if not options:
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")

    def create(self, schema: str) -> None:
        self._db.executescript(schema)

    def rows(self, sql: str, values: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._db.execute(sql, values).fetchall()

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
