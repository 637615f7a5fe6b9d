"""What the stores of a run rely on; how records survive kills is tested with them."""

from __future__ import annotations

import gc
import sqlite3
from pathlib import Path

import pytest

from ludus.runs.database import Database


def test_what_nobody_holds_any_more_is_closed(tmp_path: Path) -> None:
    """As by close(): Python 3.13 warns of connections that the garbage collector finds open."""
    database = Database.open(tmp_path / "some.db")
    connection = database._db
    del database
    gc.collect()
    with pytest.raises(sqlite3.ProgrammingError, match="closed database"):
        connection.execute("SELECT 1")
