"""Keeps the index of a run's episodes up to date with its run.db, on its own thread.

Knows: the run store, the index.  Knows not: who queries the index.
Invariant: the run is only read; what cannot be read is left out; if following ends before it is closed, `problem` says
why.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ludus.errors import LudusError, UserError
from ludus.runs.codec import decode_episode
from ludus.runs.store import RunStore
from ludus.runs.watch.index import COLUMNS, EpisodeIndex, ReadEpisode, index_error

logger = logging.getLogger(__name__)

_POLL_S = 1.0
_AGAIN_S = 5.0
"""Between looks at episodes that are listed already, each of which reads all of `_LAST`."""
_PAUSE_S = 0.002  # after each batch, so that waiting queries are answered first
_LISTED_AT_ONCE, _READ_AT_ONCE, _CREDIT_AT_ONCE = 10_000, 40, 20_000
_LAST = 2_000
"""Number of newest episodes that are read again, because rewards may come after an episode's end."""


class IndexFollower:
    """Updates an index between `start` and `close`. The index can be queried from the beginning."""

    def __init__(self, folder: Path, open_store: Callable[[], RunStore]) -> None:
        """open_store: opens a reader of the run, which only this thread uses."""
        self.index = EpisodeIndex()
        self.problem = ""
        """Why episodes are missing. Empty: they are not, as far as is known."""
        self._open_store = open_store
        self._is_closing = threading.Event()
        self._is_begun, self._is_listed = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._follow, name=f"ludus-index-{folder.name}", daemon=True)
        self._last_num = self._last_credit = 0
        self._looked_at = time.monotonic()

    def start(self) -> None:
        self._thread.start()

    def wait_begun(self, timeout_s: float) -> bool:
        """Wait until the newest episodes at the start are listed; returns False after `timeout_s`."""
        return self._is_begun.wait(timeout_s)

    def wait_listed(self, timeout_s: float) -> bool:
        """Wait until all episodes at the start are listed; returns False after `timeout_s`."""
        return self._is_listed.wait(timeout_s)

    @property
    def is_following(self) -> bool:
        return self._thread.is_alive()

    def close(self) -> None:
        """Closing twice is allowed."""
        self._is_closing.set()
        if self._thread.is_alive():
            self._thread.join()
        self.index.close()

    def _follow(self) -> None:
        try:
            with self._open_store() as store:
                while not self._is_closing.is_set():
                    with suppress(UserError):  # being written, or damaged: the index keeps what could be read
                        self._catch_up(store)
                    self._is_begun.set()
                    self._is_listed.set()
                    self._is_closing.wait(_POLL_S)
        except LudusError as error:  # the boundary of the thread: the page works without episodes
            self.problem = f"episodes are not shown: {error}"
            logger.warning("%s", self.problem)
        except Exception as error:
            self.problem = f"not all episodes are shown, and no new ones: {index_error(error)}"
            logger.exception("%s", self.problem)
        finally:
            self._is_begun.set()
            self._is_listed.set()

    def _catch_up(self, store: RunStore) -> None:
        """Update the index until there is nothing new."""
        if time.monotonic() - self._looked_at >= _AGAIN_S:
            self._look_again(store)
            self._looked_at = time.monotonic()
        ((newest,),) = store.rows("SELECT coalesce(max(num), 0) FROM episodes")
        below, listed = newest + 1, self._last_num
        while not self._is_closing.is_set():  # the newest first, as users look at them first
            rows = store.rows(
                f"SELECT {COLUMNS} FROM episodes WHERE num > ? AND num < ? ORDER BY num DESC LIMIT ?",
                (listed, below, _LISTED_AT_ONCE),
            )
            self.index.add(rows)
            self._is_begun.set()
            if len(rows) < _LISTED_AT_ONCE:
                self._last_num = newest
                break
            below = rows[-1][0]
        self._is_listed.set()
        while not self._is_closing.is_set() and (self._take_credit(store) | self._read_some(store)):
            self._is_closing.wait(_PAUSE_S)

    def _look_again(self, store: RunStore) -> None:
        sql = f"SELECT {COLUMNS} FROM episodes WHERE num > ? AND num <= ?"
        rows = store.rows(sql, (self._last_num - _LAST, self._last_num))
        listed = "SELECT num, outcome, reward FROM episodes WHERE num > ?"
        known = {num: given for num, *given in self.index.rows(listed, (self._last_num - _LAST,))}
        self.index.add([row for row in rows if known.get(row[0]) != [row[6], row[7]]])

    def _take_credit(self, store: RunStore) -> bool:
        """Add a batch of credit; returns whether there may be more."""
        sql = "SELECT rowid, turn_id, step, advantage FROM credit WHERE rowid > ? ORDER BY rowid LIMIT ?"
        rows = store.rows(sql, (self._last_credit, _CREDIT_AT_ONCE))
        if rows:
            self.index.credit([row[1:] for row in rows])
            self._last_credit = rows[-1][0]
        return len(rows) == _CREDIT_AT_ONCE

    def _read_some(self, store: RunStore) -> bool:
        nums = self.index.unread(_READ_AT_ONCE)
        read: list[tuple[int, ReadEpisode]] = []
        for num in nums:
            with suppress(UserError, ValueError):  # a damaged record
                ((record,),) = store.rows("SELECT record FROM episodes WHERE num = ?", (num,))
                read.append((num, ReadEpisode.of(decode_episode(record))))
        self.index.read(read)
        self.index.skip(set(nums) - {num for num, _ in read})
        return bool(nums)
