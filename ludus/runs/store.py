"""One run's folder: every episode, every metric, the resolved configuration, the summary.

Knows: SQLite, files, `ludus.types`.  Knows not: who plays, who trains, what a report looks like.
Invariants: when `add_episode` has returned, the episode survives `kill -9` and a power cut; what a killed process had
recorded of sessions that were still open is in the run as soon as it is opened again;
one process at a time writes a run, any number read it meanwhile.

    runs/<name>/  config.yaml   the resolved configuration that the run goes on with
                  config.until-000040.yaml  the one before, if it was another: until step 40, where a resume began
                  run.db        episodes and the credit of their turns
                  journal/      turns of sessions that have not ended
                  metrics.jsonl one line a step
                  summary.json  the run in one object, once it has ended
                  checkpoints/  written by the loop
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

from ludus.errors import UserError
from ludus.processes.files import OWNER_ALONE, hold, write_whole
from ludus.runs.codec import FORMAT, decode_episode, encode_episode
from ludus.runs.database import Database
from ludus.runs.exporters.base import Exporter, FinishedEpisode, NoExporter
from ludus.runs.journal import Journal, Unfinished, left_behind, read_unfinished
from ludus.runs.metrics import Metrics
from ludus.types import Episode, Outcome

Credit = Mapping[str, float | str]
"""By turn id: the advantage the turn was trained with, or the reason why it was masked."""

_SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS episodes (
    num INTEGER PRIMARY KEY,
    id TEXT NOT NULL,
    step INTEGER,                -- NULL: finished outside a training step
    group_id TEXT NOT NULL,
    task_id TEXT NOT NULL,
    is_eval INTEGER NOT NULL,
    outcome TEXT NOT NULL,
    reward REAL,                 -- sum over turns; NULL: no turn was given a reward
    num_turns INTEGER NOT NULL,
    num_sampled_tokens INTEGER NOT NULL,
    finished_at REAL NOT NULL,
    record BLOB NOT NULL         -- as ludus.runs.codec writes it
);
CREATE INDEX IF NOT EXISTS episodes_by_id ON episodes (id);
CREATE INDEX IF NOT EXISTS episodes_by_step ON episodes (step);
CREATE TABLE IF NOT EXISTS credit (
    turn_id TEXT PRIMARY KEY,
    step INTEGER NOT NULL,
    advantage REAL,              -- NULL: not trained, and `mask` says why
    mask TEXT
);
PRAGMA user_version = {FORMAT};
COMMIT;
"""
_INSERT = """
INSERT INTO episodes (id, step, group_id, task_id, is_eval, outcome, reward, num_turns, num_sampled_tokens,
                      finished_at, record) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""


class RunStore(AbstractContextManager["RunStore"]):
    """The folder of one run. Safe to use from several threads."""

    def __init__(self, folder: Path, *, reads_only: bool = False) -> None:
        """Use `create`, `open` or `look`; they say clearly what is wrong with the folder."""
        self.folder = folder
        self._lock = threading.RLock()
        self._db = _connect(folder, reads_only=reads_only)
        self._writer_lock: int | None = None
        """File descriptor that marks this process as the run's writer. None: it has only read so far."""
        self._journal: Journal | None = None
        """None: nobody asked for it."""
        self._exporter: Exporter = NoExporter()

    @classmethod
    def create(cls, root: Path | str, name: str, config_text: str) -> RunStore:
        """A new, empty run `root/name`. Raises UserError if it exists or cannot be written."""
        cls.check_free(root, name)
        folder = Path(root) / name
        with _explained(folder, "create the run folder"):
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(OWNER_ALONE)  # it holds conversations, and keys of those who take part
            (folder / "checkpoints").mkdir(exist_ok=True)
            (folder / "config.yaml").write_text(config_text, encoding="utf-8")
        store = cls(folder)
        store._become_writer()
        return store

    @classmethod
    def open(cls, folder: Path | str) -> RunStore:
        """A run that exists. Raises UserError, naming what was found instead."""
        folder = Path(folder)
        _check_is_run(folder)
        store = cls(folder)
        if left_behind(folder) and os.access(folder, os.W_OK):
            with suppress(UserError):  # another process writes the run, and has done so before
                store._become_writer()
            store._release_writer()
        return store

    @classmethod
    def look(cls, folder: Path | str) -> RunStore:
        """A run that exists, whoever writes it meanwhile; nothing of it is changed. Raises UserError as `open` does."""
        _check_is_run(Path(folder))
        return cls(Path(folder), reads_only=True)

    @classmethod
    def go_on(cls, folder: Path | str, config_text: str, *, step: int) -> RunStore:
        """A run that exists and goes on after `step`, perhaps with another configuration; it has no summary any more.

        The configuration it had stays beside the new one. Where it was resumed from the same step before, the first
        of them stays: it is the one that the step was trained with.
        """
        store = cls.open(folder)
        try:
            store._become_writer()
            with _explained(store.folder, "write config.yaml"):
                current, past = store.folder / "config.yaml", store.folder / f"config.until-{step:06d}.yaml"
                if store.config_text != config_text:
                    if not past.exists():
                        write_whole(past, store.config_text)
                    write_whole(current, config_text)
                (store.folder / "summary.json").unlink(missing_ok=True)
        except BaseException:
            store.close()
            raise
        return store

    @staticmethod
    def check_free(root: Path | str, name: str) -> None:
        """Raises UserError if there is a run `root/name`."""
        folder = Path(root) / name
        if (folder / "run.db").exists():
            state = "finished" if (folder / "summary.json").exists() else "begun"
            raise UserError(
                f"a run named {name!r} was already {state} in {str(folder)!r}; "
                "continue it with --resume, or choose another name (name=...)"
            )

    @staticmethod
    def has_begun(folder: Path) -> bool:
        """Whether there is something to go on from, or was: a start that failed leaves logs of its processes alone."""
        return (folder / "run.db").exists() or any((folder / "checkpoints").glob("*")) or not folder.is_dir()

    def __repr__(self) -> str:
        return f"RunStore({str(self.folder)!r}, episodes={self.num_episodes})"

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def config_text(self) -> str:
        with _explained(self.folder, "read config.yaml"):
            return (self.folder / "config.yaml").read_text(encoding="utf-8")

    # Sessions that have not ended

    @property
    def journal(self) -> Journal:
        """Where this process keeps turns until their episode is added."""
        with self._lock:
            if self._journal is None:
                self._become_writer()
                self._journal = Journal(self.folder)
            return self._journal

    # Episodes

    def export_to(self, exporter: Exporter) -> None:
        """From now on every episode that is added goes there too, once it is durable here."""
        self._exporter = exporter

    def add_episode(self, episode: Episode, *, step: int | None = None) -> None:
        """Durable when it returns. `step`: the training step that asked for the episode; None: no step did."""
        finished = FinishedEpisode.of(episode, step)
        with self._transaction("write an episode") as db:
            db.execute(_INSERT, _row(episode, finished))
        if self._journal is not None:
            self._journal.end(episode.session.id)
        self._exporter.add(finished)

    def change_episode(self, episode: Episode) -> None:
        """Writes the last episode with this id anew; rewards may come after its end. Raises UserError if none is."""
        before = self.episode(episode.id)
        assert before.session.id == episode.session.id, "an episode keeps its session"
        values = (episode.reward, episode.outcome.kind, encode_episode(episode), episode.id)
        last = "(SELECT max(num) FROM episodes WHERE id = ?)"
        with self._transaction("change an episode") as db:
            db.execute(f"UPDATE episodes SET reward = ?, outcome = ?, record = ? WHERE num = {last}", values)

    def episodes(self, *, step: int | None = None, is_eval: bool | None = None) -> Iterator[Episode]:
        """Episodes in the order in which they were added. None: of every step; training and evaluation alike."""
        where = "WHERE (?1 IS NULL OR step = ?1) AND (?2 IS NULL OR is_eval = ?2)"
        for (num,) in self._rows(f"SELECT num FROM episodes {where} ORDER BY num", (step, is_eval)):
            yield decode_episode(self._rows("SELECT record FROM episodes WHERE num = ?", (num,))[0][0])

    def episode(self, episode_id: str) -> Episode:
        """The last episode with this id. Raises UserError if there is none."""
        found = self.find_episode(episode_id)
        if found is None:
            raise UserError(f"the run {self.name!r} holds no episode {episode_id!r}")
        return found

    def find_episode(self, episode_id: str) -> Episode | None:
        """The last episode with this id. None: there is none."""
        rows = self._rows("SELECT record FROM episodes WHERE id = ? ORDER BY num DESC LIMIT 1", (episode_id,))
        return decode_episode(*rows[0]) if rows else None

    def has_episode(self, episode_id: str) -> bool:
        return bool(self._rows("SELECT 1 FROM episodes WHERE id = ?", (episode_id,)))

    def episode_rows(self) -> list[dict[str, Any]]:
        """What is known of every episode without its turns: id, step, is_eval, outcome, reward, counts."""
        names = "id, step, group_id, task_id, is_eval, outcome, reward, num_turns, num_sampled_tokens, finished_at"
        rows = self._rows(f"SELECT {names} FROM episodes ORDER BY num")
        return [dict(zip(names.split(", "), row, strict=True)) for row in rows]

    @property
    def num_episodes(self) -> int:
        return int(self._rows("SELECT count(*) FROM episodes")[0][0])

    # Credit

    def add_credit(self, step: int, credit: Credit) -> None:
        """Remember what the step made of each turn; a later step that used the turn again replaces it."""
        rows = [
            (turn_id, step, *((None, value) if isinstance(value, str) else (float(value), None)))
            for turn_id, value in credit.items()
        ]
        with self._transaction("write the credit of turns") as db:
            db.executemany("INSERT OR REPLACE INTO credit (turn_id, step, advantage, mask) VALUES (?, ?, ?, ?)", rows)

    def credit(self) -> dict[str, float | str]:
        """All that `add_credit` was given, by turn id."""
        rows = self._rows("SELECT turn_id, advantage, mask FROM credit")
        return {turn_id: advantage if mask is None else mask for turn_id, advantage, mask in rows}

    # Metrics and summary

    def add_metrics(self, step: int, metrics: Metrics) -> None:
        """Append one line. Several lines of one step are one row when read, the later ones winning."""
        line = json.dumps({"step": step, **{name: float(value) for name, value in metrics.items()}})
        path = self.folder / "metrics.jsonl"
        with self._lock, _explained(self.folder, "write metrics.jsonl"):
            self._become_writer()
            with path.open("ab+") as file:
                file.seek(max(0, file.tell() - 1))
                is_torn = file.read(1) not in (b"", b"\n")  # a line that a crash cut short must not swallow this one
                file.write((("\n" if is_torn else "") + line + "\n").encode())

    def metrics(self) -> list[tuple[int, dict[str, float]]]:
        """Step and metrics, by step. A line that a crash cut short is left out."""
        path = self.folder / "metrics.jsonl"
        rows: dict[int, dict[str, float]] = {}
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                with suppress(json.JSONDecodeError):
                    row = json.loads(line)
                    rows.setdefault(int(row.pop("step")), {}).update(row)
        return sorted(rows.items())

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Replace summary.json as a whole; its presence says that the run has ended."""
        with self._lock, _explained(self.folder, "write summary.json"):
            self._become_writer()
            write_whole(self.folder / "summary.json", json.dumps(dict(summary), indent=2) + "\n")

    def summary(self) -> dict[str, Any] | None:
        """What `write_summary` was given. None: the run has not ended."""
        path = self.folder / "summary.json"
        return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None

    def close(self) -> None:
        """Let another process write the run. Closing twice is allowed."""
        with self._lock:
            self._db.close()
            if self._journal is not None:
                self._journal.close()
                self._journal = None
            self._release_writer()

    # Inside

    def _rows(self, sql: str, values: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        with _explained(self.folder, "read run.db"):
            return self._db.rows(sql, values)

    @contextmanager
    def _transaction(self, doing: str) -> Iterator[sqlite3.Connection]:
        with self._lock, _explained(self.folder, doing):
            self._become_writer()
            with self._db.transaction() as db:
                yield db

    def _become_writer(self) -> None:
        if self._writer_lock is not None:
            return
        with _explained(self.folder, "lock the run for writing"):
            self._writer_lock = hold(self.folder / "writer.lock")
        if self._writer_lock is None:
            raise UserError(
                f"another process is writing the run {str(self.folder)!r}; "
                "wait until it has ended, or choose another name (name=...)"
            )
        self._adopt(left_behind(self.folder))

    def _adopt(self, segments: tuple[Path, ...]) -> None:
        """Makes episodes of the sessions that killed processes left behind; an episode has its session's id."""
        for found in read_unfinished(segments):
            rows = self._rows("SELECT record FROM episodes WHERE id = ?", (found.record.id,))
            kept = {turn.id for (record,) in rows for turn in decode_episode(record).session.turns}
            if found.record.turns and kept.isdisjoint(turn.id for turn in found.record.turns):
                with self._transaction("write an episode") as db:
                    broken_off = _broken_off(found)
                    db.execute(_INSERT, _row(broken_off, FinishedEpisode.of(broken_off)))
        for path in segments:
            path.unlink(missing_ok=True)

    def _release_writer(self) -> None:
        if self._writer_lock is not None:
            os.close(self._writer_lock)
            self._writer_lock = None


def _row(episode: Episode, finished: FinishedEpisode) -> tuple[object, ...]:
    return (
        *(episode.id, finished.step, episode.group_id, episode.task_id, episode.is_eval, episode.outcome.kind),
        *(episode.reward, len(episode.session.turns), episode.session.num_sampled_tokens, episode.finished_at),
        finished.record,
    )


def _broken_off(found: Unfinished) -> Episode:
    """The episode of a session whose process was killed."""
    record, info = found.record, found.info
    return Episode(
        id=record.id,
        task_id=info.get("task_id", record.id),
        group_id=info.get("group_id", record.id),
        session=record,
        rewards=found.rewards,
        outcome=Outcome("cancelled", "the process ended before the session did"),
        reward=sum(found.rewards.values()) if found.rewards else None,
        metadata=info.get("metadata", {}),
        started_at=info.get("started_at", record.turns[0].started_at),
        finished_at=record.turns[-1].finished_at,
        is_eval=info.get("is_eval", False),
    )


def _check_is_run(folder: Path) -> None:
    if not (folder / "run.db").is_file():
        found = "is not there" if not folder.exists() else "holds no run.db"
        near = sorted(path.parent.name for path in folder.parent.glob("*/run.db"))
        known = f"; runs beside it: {', '.join(near)}" if near else ""
        raise UserError(f"{str(folder)!r} is not the folder of a run: it {found}{known}")


def _connect(folder: Path, *, reads_only: bool) -> Database:
    with _explained(folder, "open run.db"):
        db = Database(folder / "run.db", reads_only=reads_only)
        sql = "SELECT user_version, NOT EXISTS (SELECT 1 FROM sqlite_master) FROM pragma_user_version"
        ((found, is_empty),) = db.rows(sql)
        if is_empty:
            db.create(_SCHEMA)
        elif found != FORMAT:
            db.close()
            raise UserError(
                f"the run in {str(folder)!r} was written by another version of Ludus: its records have the format "
                f"{found}, this version reads {FORMAT}. Read it with the version that wrote it"
            )
        return db


@contextmanager
def _explained(folder: Path, doing: str) -> Iterator[None]:
    """Failures of the disk become a UserError that names the folder and the way out."""
    try:
        yield
    except (sqlite3.OperationalError, sqlite3.DatabaseError, OSError) as error:
        cause = error.strerror or str(error) if isinstance(error, OSError) else str(error)
        raise UserError(
            f"cannot {doing} in {str(folder)!r}: {cause}. Make the folder writable or free some disk space, "
            "or put the run elsewhere (run_root=...); what was acknowledged before is safe, --resume continues it"
        ) from error
