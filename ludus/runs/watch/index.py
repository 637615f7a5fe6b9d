"""A temporary index of a run's episodes, for filters and searches that run.db cannot answer quickly.

Knows: episodes, SQLite with FTS5.  Knows not: where episodes come from, who queries.
Invariants: the entry of an episode depends only on its record and its turns' credit; the file is readable by its owner
only, and deleted when the index is closed; memory does not grow with the number of episodes.

An episode is added in two stages: first the columns of `run.db`, for all episodes at once; then what must be read from
its record (agents, tools, forks, text), episode by episode.
"""

from __future__ import annotations

import re
import shutil
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ludus.errors import UserError
from ludus.runs.database import Database
from ludus.runs.failures import kind_of
from ludus.types import Episode, Message

COLUMNS = "num, id, step, group_id, task_id, is_eval, outcome, reward, num_turns, num_sampled_tokens, finished_at"
"""Columns of `run.db` that are added in the first stage."""
MAIN = "main"
"""Name of the agent without a tag."""
_SCHEMA = """
CREATE TABLE episodes (
    num INTEGER PRIMARY KEY, id TEXT, step INTEGER, group_id TEXT, task_id TEXT, is_eval INTEGER, outcome TEXT,
    reward REAL, num_turns INTEGER, num_tokens INTEGER, finished_at REAL,
    is_read INTEGER NOT NULL DEFAULT 0, is_replaced INTEGER NOT NULL DEFAULT 0,
    num_forks INTEGER, min_version INTEGER, advantage_sum REAL NOT NULL DEFAULT 0,
    num_advantages INTEGER NOT NULL DEFAULT 0, used_step INTEGER
);
CREATE INDEX by_id ON episodes (id);
CREATE INDEX by_group ON episodes (group_id);
CREATE INDEX by_step ON episodes (step);
CREATE INDEX by_reward ON episodes (reward);
CREATE INDEX unread ON episodes (num) WHERE is_read = 0;
CREATE TABLE previews (
    num INTEGER PRIMARY KEY, reason TEXT, failure TEXT, first_text TEXT, agents TEXT, tools TEXT
);
CREATE TABLE names (kind TEXT, name TEXT, num INTEGER, PRIMARY KEY (kind, name, num)) WITHOUT ROWID;
CREATE TABLE turns (turn_id TEXT PRIMARY KEY, num INTEGER) WITHOUT ROWID;
CREATE INDEX of_episode ON turns (num);
CREATE TABLE credit (turn_id TEXT PRIMARY KEY, advantage REAL, step INTEGER) WITHOUT ROWID;
CREATE VIRTUAL TABLE texts USING fts5 (text, content='', tokenize='unicode61 remove_diacritics 2');
PRAGMA synchronous = OFF;
"""
_LIST = """
INSERT INTO episodes (num, id, step, group_id, task_id, is_eval, outcome, reward, num_turns, num_tokens, finished_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (num) DO UPDATE SET outcome = excluded.outcome, reward = excluded.reward
"""
_REPLACE = """
UPDATE episodes SET is_replaced = 1 WHERE id = ? AND num < (SELECT max(num) FROM episodes WHERE id = ?)
"""
_MOST_VALUES = 500  # of one statement; SQLite's own limit is some thousands
_PREVIEW_CHARS = 200
_WORDS = re.compile(r"\w+")
# Scripts without spaces between words: each character is indexed as a word, and a query is searched as a phrase.
_WITHOUT_SPACES = re.compile(r"([\u0e00-\u0eff\u1000-\u109f\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff])")


@dataclass(frozen=True, slots=True)
class ReadEpisode:
    """The parts of an episode's record that are indexed."""

    agents: tuple[str, ...]
    tools: tuple[str, ...]
    forks: tuple[str, ...]
    """The reasons of the episode's forks."""
    num_forks: int
    min_version: int | None
    """Version of its oldest token. None: nothing was sampled."""
    reason: str
    first_text: str
    text: str
    turn_ids: tuple[str, ...]

    @classmethod
    def of(cls, episode: Episode) -> ReadEpisode:
        turns = episode.session.turns
        called = [call.name for turn in turns for call in turn.reply.tool_calls]
        called += [span.name for span in episode.spans if span.kind == "tool"]
        versions = [min(turn.sampled.versions) for turn in turns if turn.sampled.versions]
        texts = list(_texts(episode))
        asked = turns[0].messages if turns else ()
        first = next((each.content for each in asked if each.role == "user" and each.content), "")
        return cls(
            agents=tuple(dict.fromkeys(_storable(turn.agent) or MAIN for turn in turns)),
            tools=tuple(dict.fromkeys(map(_storable, called))),
            forks=tuple(dict.fromkeys(turn.fork for turn in turns if turn.fork is not None)),
            num_forks=sum(turn.fork is not None for turn in turns),
            min_version=min(versions, default=None),
            reason=_storable(episode.outcome.reason),
            first_text=_storable(" ".join((first or next(iter(texts), "")).split())[:_PREVIEW_CHARS]),
            text=_storable("\n".join((episode.id, episode.task_id, *texts))),
            turn_ids=tuple(_storable(turn.id) for turn in turns),
        )


class EpisodeIndex:
    """The index of a run. One thread adds, while any thread may query."""

    def __init__(self) -> None:
        """Raises UserError if it cannot be created."""
        try:
            self._folder = Path(tempfile.mkdtemp(prefix="ludus-watch-"))  # accessible by its owner only
            self._writer = Database.open(self._folder / "index.db")
            self._writer.create(_SCHEMA)
            self._reader = Database.open(self._folder / "index.db", reads_only=True)
        except (OSError, sqlite3.Error) as error:
            raise UserError(index_error(error)) from error

    def close(self) -> None:
        """Closing twice is allowed."""
        self._reader.close()
        self._writer.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def rows(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        return self._reader.rows(sql, tuple(values))

    # Called by the thread that adds

    def add(self, rows: Iterable[Sequence[Any]]) -> None:
        """Add episodes by their `COLUMNS`; for known episodes, outcome and reward are updated."""
        listed = list(rows)
        with self._writer.transaction() as db:
            db.executemany(_LIST, listed)
            db.executemany(_REPLACE, [(row[1], row[1]) for row in listed])

    def read(self, episodes: Iterable[tuple[int, ReadEpisode]]) -> None:
        """Add the second stage of listed episodes, by number."""
        with self._writer.transaction() as db:
            for num, each in episodes:
                db.execute(
                    "UPDATE episodes SET is_read = 1, num_forks = ?, min_version = ? WHERE num = ?",
                    (each.num_forks, each.min_version, num),
                )
                agents, tools = ", ".join(each.agents), ", ".join(each.tools)
                preview = (num, each.reason, kind_of(each.reason), each.first_text, agents, tools)
                db.execute("INSERT INTO previews VALUES (?, ?, ?, ?, ?, ?)", preview)
                kinds = (("agent", each.agents), ("tool", each.tools), ("fork", each.forks))
                named = [(kind, name, num) for kind, names in kinds for name in names]
                db.executemany("INSERT OR IGNORE INTO names VALUES (?, ?, ?)", named)
                db.executemany("INSERT OR REPLACE INTO turns VALUES (?, ?)", [(turn, num) for turn in each.turn_ids])
                db.execute("INSERT INTO texts (rowid, text) VALUES (?, ?)", (num, _spaced(each.text)))
                self._credit(db, num)

    def skip(self, nums: Iterable[int]) -> None:
        """Mark listed episodes whose records cannot be read."""
        with self._writer.transaction() as db:
            db.executemany("UPDATE episodes SET is_read = 1 WHERE num = ?", [(num,) for num in nums])

    def credit(self, rows: Iterable[tuple[str, int, float | None]]) -> None:
        """Add id, step and advantage (None: masked) of turns, whose episodes may or may not have been read."""
        with self._writer.transaction() as db:
            given = [(turn_id, advantage, step) for turn_id, step, advantage in rows]
            db.executemany("INSERT OR REPLACE INTO credit VALUES (?, ?, ?)", given)
            nums: set[int] = set()
            for start in range(0, len(given), _MOST_VALUES):
                part = given[start : start + _MOST_VALUES]
                marks = ", ".join("?" * len(part))
                sql = f"SELECT DISTINCT num FROM turns WHERE turn_id IN ({marks})"
                nums.update(num for (num,) in db.execute(sql, [turn_id for turn_id, _, _ in part]))
            for num in nums:
                self._credit(db, num)

    def unread(self, limit: int) -> list[int]:
        """Numbers of listed episodes that were not read yet, the newest first, as users look at them first."""
        sql = "SELECT num FROM episodes WHERE is_read = 0 ORDER BY num DESC LIMIT ?"
        return [num for (num,) in self._writer.rows(sql, (limit,))]

    def _credit(self, db: Any, num: int) -> None:
        """Update the episode's columns from the credit of its turns."""
        db.execute(
            "UPDATE episodes SET (advantage_sum, num_advantages, used_step) = (SELECT coalesce(sum(advantage), 0), "
            "count(advantage), max(credit.step) FROM turns JOIN credit USING (turn_id) WHERE turns.num = ?) "
            "WHERE num = ?",
            (num, num),
        )

    @property
    def num_unread(self) -> int:
        """Number of listed episodes that were not read yet."""
        return int(self.rows("SELECT count(*) FROM episodes WHERE is_read = 0")[0][0])


def index_error(error: Exception) -> str:
    """What is wrong if the index cannot be created or written, and what to do."""
    return (
        f"the index of episodes cannot be kept in {tempfile.gettempdir()!r} ({type(error).__name__}: {error}); free "
        "some space there, or set TMPDIR to another folder, and start `ludus watch` again"
    )


def search_words(query: str) -> str | None:
    """The query in FTS5's syntax: all words must occur, the last one as a prefix. None: the query has no word.

    What is written without spaces, such as an id, must occur as it is written.
    """
    parts = [_WORDS.findall(part) for part in _storable(query).split()]
    phrases = [f'"{" ".join(_spaced(" ".join(words)).split())}"' for words in parts if words]
    return " AND ".join(phrases) + "*" if phrases else None


def _texts(episode: Episode) -> Iterator[str]:
    """The text of every message once, in order of first appearance."""
    seen: set[int] = set()
    for turn in episode.session.turns:
        for message in (*turn.messages, turn.reply):
            if id(message) not in seen:
                seen.add(id(message))
                yield from _words_of(message)
    if episode.outcome.reason:
        yield episode.outcome.reason


def _words_of(message: Message) -> Iterator[str]:
    yield from (each for each in (message.content, message.reasoning) if each)
    yield from (f"{call.name} {call.arguments}" for call in message.tool_calls)


def _spaced(text: str) -> str:
    return _WITHOUT_SPACES.sub(r" \1 ", text)


def _storable(text: str) -> str:
    """The text without lone surrogates, which SQLite cannot store."""
    return text.encode("utf-8", "replace").decode()
