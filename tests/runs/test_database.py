"""What the stores of a run rely on; how records survive kills is tested with them."""

from __future__ import annotations

import gc
import os
import sqlite3
from contextlib import closing
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


def test_who_may_not_write_the_folder_sees_what_others_write_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As a colleague does, or a container with the folder mounted read-only: what is not in the file itself yet, and
    what comes later."""
    path = tmp_path / "some.db"
    with closing(Database.open(path)) as writer:
        writer.create("CREATE TABLE seen (number)")
        monkeypatch.setattr(os, "access", lambda *_: False)
        with closing(Database.open(path, reads_only=True)) as reader:
            for number in (1, 2):
                with writer.transaction() as db:
                    db.execute("INSERT INTO seen VALUES (?)", (number,))
                assert reader.rows("SELECT max(number) FROM seen") == [(number,)]
    assert not caplog.records
    with closing(Database.open(path, reads_only=True)) as reader:
        assert reader.rows("SELECT count(*) FROM seen") == [(2,)]
