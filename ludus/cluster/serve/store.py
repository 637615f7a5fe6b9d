"""What a server of training must not forget: its models, its jobs, their events, the digest of its key.

Knows: SQLite, files, the nouns of the wire.  Knows not: HTTP, what a job does.
Invariants: what was acknowledged survives `kill -9` and a power cut; one idempotency key is one job for ever; a job
has as many events as it has been through, numbered without gaps; one process at a time serves a folder.

    queued ──▶ running ──▶ succeeded · failed
       └──▶ cancelled
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
import uuid
import zlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from ludus.cluster.serve.wire import ErrorView, EventKind, JobEvent, JobView, RegisterModel, SubmitJob
from ludus.errors import AgentError, BackendError, UserError
from ludus.processes.files import OWNER_ALONE, hold
from ludus.runs.database import Database

_SCHEMA = """
CREATE TABLE IF NOT EXISTS settings (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS models (
    project TEXT NOT NULL,
    name TEXT NOT NULL,
    body TEXT NOT NULL,          -- as it was registered, JSON
    PRIMARY KEY (project, name)
);
CREATE TABLE IF NOT EXISTS jobs (
    num INTEGER PRIMARY KEY,     -- jobs run in this order
    id TEXT NOT NULL UNIQUE,
    project TEXT NOT NULL,
    model TEXT NOT NULL,
    kind TEXT NOT NULL,
    idempotency_key TEXT UNIQUE, -- NULL: submitted without one
    digest BLOB NOT NULL,        -- of what was submitted
    arguments BLOB,              -- compressed JSON; NULL once it has ended
    state TEXT NOT NULL,
    base_step INTEGER,           -- the model's step when it was begun; NULL: it was not
    num_begun INTEGER NOT NULL DEFAULT 0,
    result TEXT,
    error TEXT,
    submitted_at REAL NOT NULL,
    started_at REAL,
    finished_at REAL
);
CREATE INDEX IF NOT EXISTS jobs_by_state ON jobs (state);
CREATE TABLE IF NOT EXISTS events (
    job_num INTEGER NOT NULL,
    number INTEGER NOT NULL,
    kind TEXT NOT NULL,
    at REAL NOT NULL,
    data TEXT NOT NULL,
    PRIMARY KEY (job_num, number)
) WITHOUT ROWID;
"""
_VIEW = "id, project, model, kind, state, submitted_at, started_at, finished_at, result, error"


@dataclass(frozen=True, slots=True)
class BegunJob:
    """A job that its server is working on."""

    id: str
    project: str
    model: str
    kind: str
    arguments: Mapping[str, Any]
    base_step: int | None
    """The model's step when the job was begun for the first time. None: that is now."""
    num_begun: int
    """Times that it was begun, this one included; more than 1 where a server was killed while it ran."""


class JobStore(AbstractContextManager["JobStore"]):
    """The folder of one server. Safe to use from several threads."""

    def __init__(self, folder: Path) -> None:
        """Raises UserError if the folder cannot be written, or if another process serves it."""
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=OWNER_ALONE)
            self._lock = hold(folder / "server.lock")
        except OSError as error:
            raise UserError(f"cannot serve from {str(folder)!r}: {error.strerror or error}; choose another") from error
        if self._lock is None:
            raise UserError(
                f"another process serves from {str(folder)!r}; wait until it has ended, or choose another folder"
            )
        try:
            self._db = _opened(folder / "jobs.db")
        except BaseException:
            os.close(self._lock)
            raise

    def __repr__(self) -> str:
        return f"JobStore({str(self.folder)!r}, jobs={self._rows('SELECT COUNT(*) FROM jobs')[0][0]})"

    def __exit__(self, *_: object) -> None:
        """Let another process serve the folder. Leaving twice is allowed."""
        self._db.close()
        held, self._lock = self._lock, None
        if held is not None:
            os.close(held)

    # ---- the key

    @property
    def key_digest(self) -> bytes | None:
        """Digest of the key that this folder is served with. None: it never was."""
        row = self._find("SELECT value FROM settings WHERE name = 'key_digest'")
        return None if row is None else bytes.fromhex(row[0])

    def set_key_digest(self, digest: bytes) -> None:
        with self._transaction() as db:
            db.execute("INSERT OR REPLACE INTO settings VALUES ('key_digest', ?)", (digest.hex(),))

    # ---- models

    def register(self, model: RegisterModel) -> None:
        """Durable when it returns. Raises AgentError 409 if there is another model of that name."""
        with self._transaction() as db:
            values = (model.project, model.name, model.model_dump_json())
            db.execute("INSERT OR IGNORE INTO models VALUES (?, ?, ?)", values)
        known = self.model(model.project, model.name)
        if known != model:
            differing = [name for name in RegisterModel.model_fields if getattr(known, name) != getattr(model, name)]
            old, new = (json.dumps(one.model_dump()[differing[0]]) for one in (known, model))
            raise AgentError(
                f"the model {model.name!r} of the project {model.project!r} is registered with {differing[0]}={old}, "
                f"not {new}; register another name",
                status=409,
                code="model_exists",
                param=differing[0],
            )

    def model(self, project: str, name: str) -> RegisterModel:
        """Raises AgentError 404 if there is none."""
        row = self._find("SELECT body FROM models WHERE project = ? AND name = ?", (project, name))
        if row is None:
            words = f"there is no model {name!r} in the project {project!r}; register it first"
            raise AgentError(words, status=404, code="model_not_found")
        return RegisterModel.model_validate_json(row[0])

    def models(self) -> list[RegisterModel]:
        rows = self._rows("SELECT body FROM models ORDER BY project, name")
        return [RegisterModel.model_validate_json(body) for (body,) in rows]

    # ---- jobs

    def submit(self, project: str, model: str, job: SubmitJob, *, idempotency_key: str | None) -> tuple[JobView, bool]:
        """The job, durable, and whether it is new. Raises AgentError 409 if its key is that of another job."""
        arguments = json.dumps(job.arguments, sort_keys=True, separators=(",", ":")).encode()
        head = json.dumps([project, model, job.kind]).encode()
        digest = sha256(head + b"\n" + arguments).digest()
        packed = zlib.compress(arguments, level=1)  # mostly text; the first level already takes most of it away
        with self._transaction() as db:
            if idempotency_key is not None:
                found = db.execute("SELECT id, digest FROM jobs WHERE idempotency_key = ?", (idempotency_key,))
                known = found.fetchone()
                if known is not None and known[1] != digest:
                    raise AgentError(
                        f"the idempotency key {idempotency_key!r} belongs to the job {known[0]}, which is another one; "
                        "send every job with a key of its own",
                        status=409,
                        code="idempotency_conflict",
                    )
                if known is not None:
                    return self.job(known[0]), False
            job_id, now = f"job-{uuid.uuid4().hex[:16]}", time.time()
            db.execute(
                "INSERT INTO jobs (id, project, model, kind, idempotency_key, digest, arguments, state, submitted_at) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, 'queued', ?)",
                (job_id, project, model, job.kind, idempotency_key, digest, packed, now),
            )
            _add_event(db, job_id, "queued", {})
        return self.job(job_id), True

    def job(self, job_id: str) -> JobView:
        """Raises AgentError 404 if there is none."""
        row = self._find(f"SELECT {_VIEW} FROM jobs WHERE id = ?", (job_id,))
        if row is None:
            raise AgentError(f"there is no job {job_id!r}", status=404, code="job_not_found")
        return _view(row)

    def jobs(self, project: str, model: str) -> list[JobView]:
        """In the order in which they were submitted."""
        rows = self._rows(f"SELECT {_VIEW} FROM jobs WHERE project = ? AND model = ? ORDER BY num", (project, model))
        return [_view(row) for row in rows]

    def next_job(self) -> str | None:
        """Id of the job to be worked on: one that a server left behind, else the oldest. None: there is no work."""
        row = self._find("SELECT id FROM jobs WHERE state IN ('queued', 'running') ORDER BY num LIMIT 1")
        return None if row is None else str(row[0])

    def begin(self, job_id: str) -> BegunJob:
        """The job is running from now on. One that was running already was left behind by a server that ended."""
        with self._transaction() as db:
            project, model, kind, packed, base_step, num_begun = db.execute(
                "UPDATE jobs SET state = 'running', num_begun = num_begun + 1, started_at = ? "
                "WHERE id = ? RETURNING project, model, kind, arguments, base_step, num_begun",
                (time.time(), job_id),
            ).fetchone()
            _add_event(db, job_id, "started", {"attempt": num_begun})
        return BegunJob(job_id, project, model, kind, json.loads(zlib.decompress(packed)), base_step, num_begun)

    def give_back(self, job_id: str) -> None:
        """Its server is told to end: that it was begun this time does not count."""
        with self._transaction() as db:
            db.execute("UPDATE jobs SET num_begun = num_begun - 1 WHERE id = ?", (job_id,))

    def set_base_step(self, job_id: str, step: int) -> None:
        """What the model's step is before the job changes anything; durable when it returns."""
        with self._transaction() as db:
            db.execute("UPDATE jobs SET base_step = ? WHERE id = ?", (step, job_id))

    def report(self, job_id: str, data: Mapping[str, Any]) -> None:
        """How far a running job is."""
        with self._transaction() as db:
            _add_event(db, job_id, "progress", data)

    def succeed(self, job_id: str, result: Mapping[str, Any]) -> None:
        self._end(job_id, "succeeded", "result", json.dumps(dict(result)))

    def fail(self, job_id: str, error: ErrorView) -> None:
        self._end(job_id, "failed", "error", error.model_dump_json())

    def cancel(self, job_id: str) -> JobView:
        """A queued job is never begun; cancelling twice is allowed. Raises AgentError 409 for one that was begun."""
        with self._transaction() as db:
            changed = db.execute("UPDATE jobs SET state = 'cancelled' WHERE id = ? AND state = 'queued'", (job_id,))
            if changed.rowcount:
                _finish(db, job_id, "cancelled", {})
        view = self.job(job_id)
        if view.state != "cancelled":
            raise AgentError(
                f"the job {job_id} is {view.state}; only a queued one can be cancelled, because a step of training is "
                "taken whole or not at all",
                status=409,
                code="job_begun",
            )
        return view

    def events(self, job_id: str, *, after: int = 0) -> list[JobEvent]:
        """Those with a number above `after`, in order."""
        rows = self._rows(
            "SELECT number, events.kind, at, data FROM events JOIN jobs ON jobs.num = events.job_num "
            "WHERE jobs.id = ? AND number > ? ORDER BY number",
            (job_id, after),
        )
        return [JobEvent(number=number, kind=kind, at=at, data=json.loads(data)) for number, kind, at, data in rows]

    # ---- inside

    def _end(self, job_id: str, state: Literal["succeeded", "failed"], column: str, text: str) -> None:
        with self._transaction() as db:
            db.execute(f"UPDATE jobs SET state = ?, {column} = ? WHERE id = ?", (state, text, job_id))
            _finish(db, job_id, state, json.loads(text))

    def _rows(self, sql: str, values: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        with _explained(self.folder):
            return self._db.rows(sql, values)

    def _find(self, sql: str, values: tuple[object, ...] = ()) -> tuple[Any, ...] | None:
        return next(iter(self._rows(sql, values)), None)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with _explained(self.folder), self._db.transaction() as db:
            yield db


def _add_event(db: sqlite3.Connection, job_id: str, kind: EventKind, data: Mapping[str, Any]) -> None:
    db.execute(
        "INSERT INTO events SELECT jobs.num, COALESCE(MAX(number), 0) + 1, ?, ?, ? "
        "FROM jobs LEFT JOIN events ON events.job_num = jobs.num WHERE jobs.id = ? GROUP BY jobs.num",
        (kind, time.time(), json.dumps(dict(data)), job_id),
    )


def _finish(db: sqlite3.Connection, job_id: str, kind: EventKind, data: Mapping[str, Any]) -> None:
    """What it was asked is not needed any more: the digest tells it from others."""
    db.execute("UPDATE jobs SET arguments = NULL, finished_at = ? WHERE id = ?", (time.time(), job_id))
    _add_event(db, job_id, kind, data)


def _view(row: tuple[Any, ...]) -> JobView:
    values = dict(zip(_VIEW.split(", "), row, strict=True))
    for name in ("result", "error"):
        values[name] = None if values[name] is None else json.loads(values[name])
    return JobView(**values)


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """A disk that refuses is the server's fault; its client may send the same again later."""
    try:
        yield
    except sqlite3.Error as error:
        raise BackendError(
            f"cannot use jobs.db in {str(folder)!r}: {error}. Free some disk space or make the folder writable; what "
            "was acknowledged is safe"
        ) from error


def _opened(path: Path) -> Database:
    """Raises UserError if the file is damaged, and leaves it as it is."""
    try:
        db = Database.open(path)
        with ExitStack() as stack:
            stack.callback(db.close)
            wrong = db.damage()
            if wrong is None:
                db.create(_SCHEMA)
                stack.pop_all()
                return db
    except sqlite3.DatabaseError as error:
        wrong = str(error)
    raise UserError(
        f"{str(path)!r} cannot be used: {wrong}. Restore it from a copy, or move it away to serve without the jobs in "
        "it; the folders of models are whole by themselves"
    )
