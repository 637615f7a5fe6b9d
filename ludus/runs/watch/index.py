"""An index of a run's episodes beside the run, for filters that its own file does not answer quickly.

Knows: episodes, SQLite with FTS5.  Knows not: where episodes come from, who asks.
Invariants: what it holds of an episode is a function of its record and of its turns' credit; it is a file that its user
alone can read, and gone when it is closed. Memory does not grow with the number of episodes.

An episode is there in two stages: the columns that `run.db` has itself, for all of them at once, and what takes reading
its record (agents, tools, forks, text), one after the other.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ludus.runs.database import Database
from ludus.runs.failures import kind_of
from ludus.types import Episode, Message

COLUMNS = "num, id, step, group_id, task_id, is_eval, outcome, reward, num_turns, num_sampled_tokens, finished_at"
"""Of `run.db`, which an episode is listed with at once."""
MAIN = "main"
"""What the agent without a tag is called."""
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
CREATE TABLE previews (num INTEGER PRIMARY KEY, reason TEXT, failure TEXT, first_text TEXT, agents TEXT);
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
_MOST_VALUES = 500  # of one statement; SQLite takes some thousands
_PREVIEW_CHARS = 200
_WORDS = re.compile(r"\w+")
# Scripts that are written without spaces between words: each character is a word, and what is searched is a phrase.
_WITHOUT_SPACES = re.compile(r"([\u0e00-\u0eff\u1000-\u109f\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff])")


@dataclass(frozen=True, slots=True)
class ReadEpisode:
    """What an index keeps of an episode's record."""

    agents: tuple[str, ...]
    tools: tuple[str, ...]
    forks: tuple[str, ...]
    """Their reasons."""
    num_forks: int
    min_version: int | None
    """None: nothing was sampled."""
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
            text=_storable("\n".join(texts)),
            turn_ids=tuple(_storable(turn.id) for turn in turns),
        )


class EpisodeIndex:
    """Of one run. One thread adds; any thread may ask, also meanwhile."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="ludus-watch-"))  # for its user alone
        self._writer = Database.open(self._folder / "index.db")
        self._writer.create(_SCHEMA)
        self._reader = Database.open(self._folder / "index.db", reads_only=True)

    def close(self) -> None:
        """Closing twice is allowed."""
        self._reader.close()
        self._writer.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def rows(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        return self._reader.rows(sql, tuple(values))

    # What the thread that adds calls

    def add(self, rows: Iterable[Sequence[Any]]) -> None:
        """Episodes by their `COLUMNS`; of one that is listed already outcome and reward are changed."""
        listed = list(rows)
        with self._writer.transaction() as db:
            db.executemany(_LIST, listed)
            db.executemany(_REPLACE, [(row[1], row[1]) for row in listed])

    def read(self, episodes: Iterable[tuple[int, ReadEpisode]]) -> None:
        """What the records of listed episodes say, by their numbers."""
        with self._writer.transaction() as db:
            for num, each in episodes:
                db.execute(
                    "UPDATE episodes SET is_read = 1, num_forks = ?, min_version = ? WHERE num = ?",
                    (each.num_forks, each.min_version, num),
                )
                agents = ", ".join(each.agents)
                preview = (num, each.reason, kind_of(each.reason), each.first_text, agents)
                db.execute("INSERT INTO previews VALUES (?, ?, ?, ?, ?)", preview)
                kinds = (("agent", each.agents), ("tool", each.tools), ("fork", each.forks))
                named = [(kind, name, num) for kind, names in kinds for name in names]
                db.executemany("INSERT OR IGNORE INTO names VALUES (?, ?, ?)", named)
                db.executemany("INSERT OR REPLACE INTO turns VALUES (?, ?)", [(turn, num) for turn in each.turn_ids])
                db.execute("INSERT INTO texts (rowid, text) VALUES (?, ?)", (num, _spaced(each.text)))
                self._credit(db, num)

    def skip(self, nums: Iterable[int]) -> None:
        """Listed episodes whose records cannot be read."""
        with self._writer.transaction() as db:
            db.executemany("UPDATE episodes SET is_read = 1 WHERE num = ?", [(num,) for num in nums])

    def credit(self, rows: Iterable[tuple[str, int, float | None]]) -> None:
        """Id, step and advantage (None: masked) of turns, whether their episodes have been read yet or not."""
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
        """Numbers of listed episodes that are to be read, the newest first: they are looked at first."""
        sql = "SELECT num FROM episodes WHERE is_read = 0 ORDER BY num DESC LIMIT ?"
        return [num for (num,) in self._writer.rows(sql, (limit,))]

    def _credit(self, db: Any, num: int) -> None:
        """Make the episode's numbers of what is known of its turns."""
        db.execute(
            "UPDATE episodes SET (advantage_sum, num_advantages, used_step) = (SELECT coalesce(sum(advantage), 0), "
            "count(advantage), max(credit.step) FROM turns JOIN credit USING (turn_id) WHERE turns.num = ?) "
            "WHERE num = ?",
            (num, num),
        )

    @property
    def num_unread(self) -> int:
        """Listed episodes that agents, tools and text are not known of yet."""
        return int(self.rows("SELECT count(*) FROM episodes WHERE is_read = 0")[0][0])


def search_words(query: str) -> str | None:
    """The query as FTS5 takes it: every word, the last one begun. None: it has no word."""
    words = _WORDS.findall(_storable(query))
    if not words:
        return None
    phrases = [f'"{" ".join(_spaced(word).split())}"' for word in words]
    return " AND ".join(phrases) + "*"


def _texts(episode: Episode) -> Iterator[str]:
    """Every message once, in the order of first sight."""
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
    """Without halves of surrogate pairs, which SQLite does not hold."""
    return text.encode("utf-8", "replace").decode()
