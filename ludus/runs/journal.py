"""The journal in a run's folder: the turns of sessions that have not ended, which survive the death of the process.

Knows: files, one entry per turn.  Knows not: SQLite, who samples.
Invariants: when `add_turn` has returned, the turn survives `kill -9`; an incomplete entry does not affect others;
entries of ended sessions are removed.

    runs/<name>/journal/4711-9f3c21d0-000001.turns   one process's first segment; locked while that process lives

An entry is passed to the kernel in one write, which survives the process and takes a few microseconds per turn; a power
cut may lose the last seconds of open sessions.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
import time
import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from ludus.errors import BackendError
from ludus.processes.files import OWNER_ALONE, lock, set_aside
from ludus.runs.codec import Decoder, Piece, SessionReader, SessionWriter, plain, to_bytes
from ludus.types import Episode, Node, Outcome, SessionRecord, Turn

logger = logging.getLogger(__name__)

FOLDER = "journal"
SEGMENT_BYTES = 16 * 2**20  # a file this large is read in a second, and is deleted when its sessions have ended
_SUFFIX = ".turns"
_NUMBER_BYTES = 4
"""Size of the two numbers before each entry: its length and its CRC-32. A turn of the longest context has some MiB."""


class _Entry(msgspec.Struct, array_like=True):
    session: str
    info: dict[str, Any]
    """Facts about the session, if there are new ones."""
    rewards: dict[str, float] = {}
    piece: Piece | None = None


_decode = Decoder(_Entry)


@dataclass(slots=True)
class Unfinished:
    """A session that had not ended when its process ended."""

    reader: SessionReader
    rewards: dict[str, float] = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)
    """The facts given to `Journal.info`."""

    @property
    def record(self) -> SessionRecord:
        return self.reader.record()

    @property
    def episode(self) -> Episode:
        """It as it was broken off; its session has turns."""
        record, info = self.record, self.info
        return Episode(
            id=record.id,
            task_id=info.get("task_id", record.id),
            group_id=info.get("group_id", record.id),
            session=record,
            rewards=self.rewards,
            outcome=Outcome("cancelled", "the process ended before the session did"),
            reward=sum(self.rewards.values()) if self.rewards else None,
            metadata=info.get("metadata", {}),
            started_at=info.get("started_at", record.turns[0].started_at),
            finished_at=record.turns[-1].finished_at,
            is_eval=info.get("is_eval", False),
        )


class Journal:
    """The journal of this process in one run's folder. Safe to use from several threads."""

    def __init__(self, run_folder: Path, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._folder = run_folder / FOLDER
        self._segment_bytes = segment_bytes
        self._name = f"{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._lock = threading.Lock()
        self._segments: list[_Segment] = []
        """The last one is written to."""
        self._num_segments = 0
        self._open: dict[str, _OpenSession] = {}

    def __repr__(self) -> str:
        return f"Journal({str(self._folder)!r}, open={len(self._open)}, segments={len(self._segments)})"

    def info(self, session_id: str, facts: Mapping[str, Any]) -> None:
        """Note facts about a session besides its turns; they are written with its first entry."""
        with self._lock:
            self._open.setdefault(session_id, _OpenSession()).info = facts

    def add_turn(self, session_id: str, nodes: Sequence[Node], turn: Turn) -> None:
        """Write a turn; it is durable when this returns. Raises BackendError if the disk fails; the turn is then
        written with the session's next entry.

        nodes: those added to the session's graph since its previous turn.
        """
        with self._lock:
            session = self._open.setdefault(session_id, _OpenSession())
            self._append(session_id, session, piece=session.writer.write(nodes, turn))

    def add_rewards(self, session_id: str, rewards: Mapping[str, float]) -> None:
        """Write rewards by turn id, in addition to earlier ones; otherwise as `add_turn`."""
        with self._lock:
            self._append(session_id, self._open.setdefault(session_id, _OpenSession()), rewards=dict(rewards))

    def end(self, session_id: str) -> None:
        """Drop the session's entries: it is stored elsewhere now."""
        with self._lock:
            self._open.pop(session_id, None)
            for segment in self._segments:
                segment.session_ids.discard(session_id)
            for segment in self._segments[:-1]:
                if not segment.session_ids:
                    segment.remove()
                    self._segments.remove(segment)
            if self._segments and not self._segments[-1].session_ids:
                self._segments[-1].clear()

    def close(self) -> None:
        """Let another process read what is left; segments whose sessions have all ended are deleted."""
        with self._lock:
            for segment in self._segments:
                segment.close()
            self._segments = []

    def _append(self, session_id: str, session: _OpenSession, **told: Any) -> None:
        entry = to_bytes(_Entry(session_id, plain(session.info), **told))
        session.info = {}
        session.unwritten += len(entry).to_bytes(_NUMBER_BYTES) + zlib.crc32(entry).to_bytes(_NUMBER_BYTES) + entry
        try:
            if not self._segments or self._segments[-1].num_bytes >= self._segment_bytes:
                self._folder.mkdir(mode=OWNER_ALONE, parents=True, exist_ok=True)
                self._num_segments += 1
                name = f"{self._name}-{self._num_segments:06d}{_SUFFIX}"
                self._segments.append(_Segment.create(self._folder / name))
            segment = self._segments[-1]
            segment.append(session.unwritten)
        except OSError as error:
            raise BackendError(
                f"cannot write a turn into {str(self._folder)!r}: {error.strerror or error}. Free some disk space or "
                "make the folder writable; what was answered before is safe"
            ) from error
        segment.session_ids.add(session_id)
        session.unwritten = b""


@dataclass(slots=True)
class _OpenSession:
    writer: SessionWriter = field(default_factory=SessionWriter)
    info: Mapping[str, Any] = field(default_factory=dict)
    """Not written yet."""
    unwritten: bytes = b""
    """Entries that could not be written."""


@dataclass(slots=True, eq=False)
class _Segment:
    path: Path
    descriptor: int
    num_bytes: int = 0
    session_ids: set[str] = field(default_factory=set)
    """Open sessions with entries in it."""

    @classmethod
    def create(cls, path: Path) -> _Segment:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        while not lock(descriptor):  # who looks for abandoned segments holds it for an instant
            time.sleep(0.001)
        return cls(path, descriptor)

    def append(self, entries: bytes) -> None:
        try:
            if os.write(self.descriptor, entries) < len(entries):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            with contextlib.suppress(OSError):  # what was written of it must not run into the next entry
                os.ftruncate(self.descriptor, self.num_bytes)
            raise
        self.num_bytes += len(entries)

    def clear(self) -> None:
        os.ftruncate(self.descriptor, 0)
        self.num_bytes = 0

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
        os.close(self.descriptor)

    def close(self) -> None:
        if self.session_ids:
            os.close(self.descriptor)
        else:
            self.remove()


def left_behind(run_folder: Path) -> tuple[Path, ...]:
    """Segments of processes that have ended, in order for each process."""
    return tuple(path for path in sorted((run_folder / FOLDER).glob(f"[0-9]*{_SUFFIX}")) if _is_free(path))


def read_unfinished(paths: Sequence[Path]) -> tuple[Unfinished, ...]:
    """The sessions in these segments, in the order of their first entries.

    A damaged entry is left out, with everything after it in its session.
    """
    found: dict[str, Unfinished] = {}
    for path in paths:
        for entry in _entries(path):
            if entry is None:
                continue
            session = found.setdefault(entry.session, Unfinished(SessionReader(entry.session)))
            session.info = entry.info or session.info
            session.rewards.update(entry.rewards)
            if entry.piece is not None and session.reader.fits(entry.piece):
                session.reader.read(entry.piece)
    return tuple(found.values())


def discard(paths: Sequence[Path]) -> None:
    """Remove segments that were read; those with unreadable parts are set aside."""
    for path in paths:
        if None in _entries(path):
            logger.warning("%s is damaged: turns of open sessions are lost; it is kept as %s", path, set_aside(path))
        else:
            path.unlink(missing_ok=True)


def _entries(path: Path) -> Iterator[_Entry | None]:
    """The entries of the segment; None for one that is damaged or incomplete."""
    size = path.stat().st_size  # a length that is damaged may be any
    with path.open("rb") as file:
        while length := file.read(_NUMBER_BYTES):
            checksum = file.read(_NUMBER_BYTES)
            content = file.read(min(int.from_bytes(length), size))
            is_whole = len(checksum) == _NUMBER_BYTES and zlib.crc32(content) == int.from_bytes(checksum)
            yield _decode(content) if is_whole else None


def _is_free(path: Path) -> bool:
    """Whether no process holds the segment."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return lock(descriptor)
    finally:
        os.close(descriptor)
