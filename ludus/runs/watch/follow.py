"""Keeps the index of a run's episodes up to date with its run.db, on a thread of its own.

Knows: the run store, the index.  Knows not: who asks the index.
Invariant: the run is only read; what cannot be read of it is left out.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ludus.errors import LudusError, UserError
from ludus.runs.codec import decode_episode
from ludus.runs.store import RunStore
from ludus.runs.watch.index import COLUMNS, EpisodeIndex, ReadEpisode

logger = logging.getLogger(__name__)

_POLL_S = 1.0
_PAUSE_S = 0.002  # after each batch: who asks meanwhile is answered first
_LISTED_AT_ONCE, _READ_AT_ONCE, _CREDIT_AT_ONCE = 10_000, 40, 20_000
_LAST = 2_000
"""Rewards may come after an episode's end: so many of the newest are looked at again."""


class IndexFollower:
    """From `start` to `close`; the index is there from the beginning."""

    def __init__(self, folder: Path, open_store: Callable[[], RunStore]) -> None:
        """open_store: a reader of the run, which this thread alone uses."""
        self.index = EpisodeIndex()
        self._open_store = open_store
        self._is_closing = threading.Event()
        self._is_begun, self._is_listed = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._follow, name=f"ludus-index-{folder.name}", daemon=True)
        self._last_num = self._last_credit = 0

    def start(self) -> None:
        self._thread.start()

    def wait_begun(self, timeout_s: float) -> bool:
        """Whether the newest episodes that there were at the start are listed, after at most so many seconds."""
        return self._is_begun.wait(timeout_s)

    def wait_listed(self, timeout_s: float) -> bool:
        """Likewise all of them."""
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
                    with suppress(UserError):  # written meanwhile, or damaged: what can be read is there
                        self._catch_up(store)
                    self._is_begun.set()
                    self._is_listed.set()
                    self._is_closing.wait(_POLL_S)
        except LudusError as error:  # the boundary of the thread: the page shows what can be read without
            logger.warning("episodes are not shown: %s", error)
        except Exception:
            logger.exception("episodes are not shown")
        finally:
            self._is_begun.set()
            self._is_listed.set()

    def _catch_up(self, store: RunStore) -> None:
        """Until there is nothing new."""
        self._look_again(store)
        ((newest,),) = store.rows("SELECT coalesce(max(num), 0) FROM episodes")
        below, listed = newest + 1, self._last_num
        while not self._is_closing.is_set():  # the newest first: they are looked at first
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
        """Whether there may be more of it."""
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
            with suppress(UserError, ValueError):  # its bytes are not whole
                ((record,),) = store.rows("SELECT record FROM episodes WHERE num = ?", (num,))
                read.append((num, ReadEpisode.of(decode_episode(record))))
        self.index.read(read)
        self.index.skip(set(nums) - {num for num, _ in read})
        return bool(nums)
