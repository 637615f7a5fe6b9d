"""One run's folder: every episode, every metric, the resolved configuration, the summary.

Knows: SQLite, files, `ludus.types`.  Knows not: who plays, who trains, what a report looks like.
Invariants: when `add_episode` has returned, the episode survives `kill -9` and a power cut; open sessions of a killed
process become episodes of the run when it is next opened; one process at a time writes a run, any number may read it.

    runs/<name>/  config.yaml   the resolved configuration in use
                  config.until-000040.yaml  an earlier, different one: until step 40, where a resume began
                  run.db        episodes and the credit of their turns
                  journal/      turns of sessions that have not ended
                  metrics.jsonl one line per step
                  tokens/       what each step's loss used of its tokens, one file per step
                  summary.json  the run in one object, once it has ended
                  checkpoints/  written by the loop
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

from ludus.errors import UserError
from ludus.processes.files import OWNER_ALONE, hold, set_aside, write_whole
from ludus.runs import records
from ludus.runs.codec import FORMAT, decode_episode, encode_episode
from ludus.runs.failures import KINDS, Failure, Failures
from ludus.runs.folder import (
    LOCK,
    RESUMED,
    config_text,
    is_begun,
    read_config,
    read_metrics,
    read_summary,
    write_config,
)
from ludus.runs.journal import Journal, discard, left_behind, read_unfinished
from ludus.runs.metrics import Metrics
from ludus.runs.records import FinishedEpisode
from ludus.runs.tokens import StepTokens, TokenColumns, discard_tokens, missing_steps, read_tokens, write_tokens
from ludus.types import Episode

logger = logging.getLogger(__name__)

_MOST_VALUES = 500  # of one statement; SQLite takes some thousands

Credit = Mapping[str, float | str]
"""By turn id: the advantage the turn was trained with, or the reason why it was masked."""


class RunStore(AbstractContextManager["RunStore"]):
    """The folder of one run. Safe to use from several threads."""

    def __init__(self, folder: Path, *, is_begun: bool = False, reads_only: bool = False, checks: bool = True) -> None:
        """Use `create`, `open` or `look` instead: their errors explain what is wrong with the folder."""
        self.folder = folder
        self._lock = threading.RLock()
        self._records = _connect(folder, is_begun=is_begun, reads_only=reads_only, checks=checks)
        self._writer_lock: int | None = None
        """Descriptor of the lock by which this process is the run's writer. None: it has only read so far."""
        self._journal: Journal | None = None
        """None: not used yet."""
        self._failures, self._failures_until = Failures(), 0
        """The failures among the episodes up to this number."""

    @classmethod
    def create(cls, root: Path | str, name: str, config_text: str) -> RunStore:
        """A new, empty run `root/name`. Raises UserError if it exists or cannot be written."""
        cls.check_free(root, name)
        folder = Path(root) / name
        with _explained(folder, "create the run folder"):
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(OWNER_ALONE)  # it holds conversations, and keys of those who take part
            (folder / "checkpoints").mkdir(mode=OWNER_ALONE, exist_ok=True)
            write_config(folder, config_text)
        store = cls(folder)
        store._become_writer()
        return store

    @classmethod
    def open(cls, folder: Path | str) -> RunStore:
        """An existing run, or what can be read of it: `damages` lists the rest.

        Raises UserError, with what was found instead.
        """
        folder = Path(folder)
        cls.check_there(folder)
        store = cls(folder, is_begun=is_begun(folder))
        if left_behind(folder) and store._records.damage is None and os.access(folder, os.W_OK):
            with suppress(UserError):  # another process writes the run, and has done so before
                store._become_writer()
            store._release_writer()
        return store

    @classmethod
    def look(cls, folder: Path | str, *, checks: bool = True) -> RunStore:
        """An existing run, read-only, even if another process writes it. Raises UserError as `open` does.

        checks: read all of run.db and report damage. False: open at once, without checks.
        """
        folder = Path(folder)
        cls.check_there(folder)
        store = cls(folder, is_begun=is_begun(folder), reads_only=True, checks=checks)
        if checks:
            store._warn_of_damages()
        return store

    @classmethod
    def go_on(cls, folder: Path | str, config_text: str, *, step: int) -> RunStore:
        """Resume an existing run after `step`, perhaps with another configuration. Its summary is removed, and
        everything of later steps except their episodes and credit, since these steps are trained anew.

        Damaged files are set aside, and a warning says what was wrong.
        The previous configuration is kept beside the new one. If the run was resumed from the same step before, the
        first of them is kept: it is the one that the step was trained with.
        """
        folder = Path(folder)
        store = cls.open(folder)
        try:
            store._warn_of_damages()
            store._become_writer()
            with _explained(folder, "write config.yaml"):
                current, past = folder / "config.yaml", folder / f"config.until-{step:06d}.yaml"
                if store._error_of(read_config) is not None:
                    if current.exists():
                        set_aside(current)
                elif store.config_text != config_text and not past.exists():
                    write_whole(past, store.config_text)
                write_config(folder, config_text)
                (folder / "summary.json").unlink(missing_ok=True)
                discard_tokens(folder, after=step)
            with store._transaction("forget the batches of later steps") as db:
                db.execute("DELETE FROM batches WHERE step > ?", (step,))
            store.add_metrics(step, {RESUMED: 1.0})
        except BaseException:
            store.close()
            raise
        return store

    @staticmethod
    def is_there(folder: Path) -> bool:
        """Whether there is a run in the folder, however damaged; `create` then refuses it."""
        return (folder / records.NAME).is_file() or is_begun(folder)

    @staticmethod
    def check_there(folder: Path) -> None:
        """Raises UserError if there is no run in the folder, naming runs beside it."""
        if not RunStore.is_there(folder):
            found = "is not there" if not folder.exists() else f"holds no {records.NAME}"
            near = sorted(path.parent.name for path in folder.parent.glob(f"*/{records.NAME}"))
            known = f"; runs beside it: {', '.join(near)}" if near else ""
            raise UserError(f"{str(folder)!r} is not the folder of a run: it {found}{known}")

    @staticmethod
    def check_free(root: Path | str, name: str) -> None:
        """Raises UserError if there is a run `root/name`."""
        folder = Path(root) / name
        if RunStore.is_there(folder):
            state = "finished" if (folder / "summary.json").exists() else "begun"
            raise UserError(
                f"a run named {name!r} was already {state} in {str(folder)!r}; "
                "continue it with --resume, or choose another name (name=...)"
            )

    @staticmethod
    def has_begun(folder: Path) -> bool:
        """Whether the run has begun, so that it can be resumed: a failed start leaves only logs of its processes."""
        return RunStore.is_there(folder) or any((folder / "checkpoints").glob("*")) or not folder.is_dir()

    def __repr__(self) -> str:
        return f"RunStore({str(self.folder)!r}, episodes={self.num_episodes})"

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def is_salvaged(self) -> bool:
        """Whether run.db is damaged, so that this is a copy of what can be read of it."""
        return self._records.damage is not None

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def config_text(self) -> str:
        """The text of the configuration, or what is left of it."""
        with _explained(self.folder, "read config.yaml"):
            return config_text(self.folder)

    def damages(self) -> list[str]:
        """A sentence for each damaged file in the folder, of which the readable part is used."""
        found = [self._records.damage] if self._records.damage is not None else []
        lines = read_metrics(self.folder)
        if lines.num_unreadable:
            found.append(f"metrics.jsonl is damaged: {lines.num_unreadable:,} of its lines cannot be read")
        told = {step for step, _ in lines.rows} | lines.void
        missing = {step for (step,) in self.rows("SELECT DISTINCT step FROM credit")} - told
        if self.summary() is None:
            missing -= {max(missing, default=0)}  # its metrics may be on their way, or were when a crash came
        if missing:
            found.append(f"metrics.jsonl has nothing of {len(missing):,} steps, of which the first is {min(missing)}")
        trained = {step for (step,) in self.rows("SELECT DISTINCT step FROM credit WHERE mask IS NULL")}
        if gone := missing_steps(self.folder, trained):
            found.append(f"tokens/ has nothing of {len(gone):,} steps, of which the first is {gone[0]}")
        return found + [str(error) for error in map(self._error_of, (read_config, read_summary)) if error is not None]

    # Sessions that have not ended

    @property
    def journal(self) -> Journal:
        """This process's journal, for turns until their episode is added."""
        with self._lock:
            if self._journal is None:
                self._become_writer()
                self._journal = Journal(self.folder)
            return self._journal

    # Episodes

    def add_episode(self, episode: Episode, *, step: int | None = None) -> None:
        """Add an episode; it is durable when this returns. step: the training step it was played for, if any."""
        finished = FinishedEpisode.of(episode, step)
        with self._transaction("write an episode") as db:
            db.execute(records.INSERT, records.row_of(episode, finished))
        if self._journal is not None:
            self._journal.end(episode.session.id)

    def change_episode(self, episode: Episode) -> None:
        """Replace the last episode with this id, for rewards that come after its end. Raises UserError if none is."""
        before = self.episode(episode.id)
        assert before.session.id == episode.session.id, "an episode keeps its session"
        record = encode_episode(episode)
        values = (episode.reward, episode.outcome.kind, record, zlib.crc32(record), episode.id)
        last = "(SELECT max(num) FROM episodes WHERE id = ?)"
        with self._transaction("change an episode") as db:
            db.execute(
                f"UPDATE episodes SET reward = ?, outcome = ?, record = ?, checksum = ? WHERE num = {last}", values
            )

    def episodes(self, *, step: int | None = None, is_eval: bool | None = None) -> Iterator[Episode]:
        """Episodes in the order they were added. step: None: of every step. is_eval: None: training and evaluation."""
        wanted = {name: value for name, value in {"step": step, "is_eval": is_eval}.items() if value is not None}
        where = " AND ".join(("TRUE", *(f"{name} = ?" for name in wanted)))
        for (num,) in self.rows(f"SELECT num FROM episodes WHERE {where} ORDER BY num", tuple(wanted.values())):
            yield decode_episode(self.rows("SELECT record FROM episodes WHERE num = ?", (num,))[0][0])

    def episode(self, episode_id: str) -> Episode:
        """The last episode with this id. Raises UserError if there is none."""
        found = self.find_episode(episode_id)
        if found is None:
            raise UserError(f"the run {self.name!r} holds no episode {episode_id!r}")
        return found

    def find_episode(self, episode_id: str) -> Episode | None:
        """The last episode with this id. None: there is none."""
        rows = self.rows("SELECT record FROM episodes WHERE id = ? ORDER BY num DESC LIMIT 1", (episode_id,))
        return decode_episode(*rows[0]) if rows else None

    def attempts(self, episode_id: str, *, after: int) -> list[Episode]:
        """Episodes with this id or retries of it (`-r1`), in order. after: skip so many episodes of the record."""
        # the plus has SQLite look for the ids, not through all that was added since
        sql = "SELECT record FROM episodes WHERE (id = ? OR id > ? AND id < ?) AND +num > ? ORDER BY num"
        rows = self.rows(sql, (episode_id, f"{episode_id}-r", f"{episode_id}-s", after))
        return [decode_episode(*row) for row in rows]

    def episode_at(self, num: int) -> Episode:
        """The episode with this number in order of addition. Raises UserError if there is none."""
        rows = self.rows("SELECT record FROM episodes WHERE num = ?", (num,))
        if not rows:
            raise UserError(f"the run {self.name!r} holds no episode of number {num}")
        return decode_episode(*rows[0])

    def has_episode(self, episode_id: str) -> bool:
        return bool(self.rows("SELECT 1 FROM episodes WHERE id = ?", (episode_id,)))

    def episode_rows(self) -> list[dict[str, Any]]:
        """Every episode without its turns: id, step, is_eval, outcome, reward, counts."""
        names = "id, step, group_id, task_id, is_eval, outcome, reward, num_turns, num_sampled_tokens, finished_at"
        rows = self.rows(f"SELECT {names} FROM episodes ORDER BY num")
        return [dict(zip(names.split(", "), row, strict=True)) for row in rows]

    def failures(self) -> tuple[Failure, ...]:
        """Failed episodes so far, grouped by what went wrong, most frequent first."""
        # Only what came since the last time is looked at: this is asked after every step.
        last = int(self.rows("SELECT coalesce(max(num), 0) FROM episodes")[0][0])
        where = f"num > ? AND num <= ? AND outcome IN ({', '.join('?' * len(KINDS))})"
        found = self.rows(
            f"SELECT record FROM episodes WHERE {where} ORDER BY num", (self._failures_until, last, *KINDS)
        )
        self._failures_until = last
        for (record,) in found:
            self._failures.add(decode_episode(record))
        return self._failures.groups()

    @property
    def num_episodes(self) -> int:
        return int(self.rows("SELECT count(*) FROM episodes")[0][0])

    # Credit

    def add_credit(self, step: int, credit: Credit) -> None:
        """Store the credit of each turn in the step; a later step that used the turn again replaces it."""
        rows = [
            (turn_id, step, *((None, value) if isinstance(value, str) else (float(value), None)))
            for turn_id, value in credit.items()
        ]
        with self._transaction("write the credit of turns") as db:
            db.executemany(records.INSERT_CREDIT, rows)

    def credit(self) -> dict[str, float | str]:
        """All stored credit, by turn id."""
        rows = self.rows("SELECT turn_id, advantage, mask FROM credit")
        return {turn_id: advantage if mask is None else mask for turn_id, advantage, mask in rows}

    def credit_of(self, turn_ids: Sequence[str]) -> list[tuple[str, int, float | None, str | None]]:
        """Id, step, advantage and mask of those of the given turns that a step used."""
        found: list[tuple[str, int, float | None, str | None]] = []
        for start in range(0, len(turn_ids), _MOST_VALUES):
            part = tuple(turn_ids[start : start + _MOST_VALUES])
            marks = ", ".join("?" * len(part))
            found += self.rows(f"SELECT turn_id, step, advantage, mask FROM credit WHERE turn_id IN ({marks})", part)
        return found

    def add_tokens(self, step: int, tokens: TokenColumns, turns: Mapping[int, tuple[str, Sequence[int]]]) -> None:
        """Store what the step's loss used of every trained token. turns: as in `write_tokens`."""
        with self._lock:
            self._become_writer()
        with _explained(self.folder, "write the numbers of trained tokens"):
            write_tokens(self.folder, step, tokens, turns)

    def tokens(self, step: int) -> StepTokens | None:
        """The tokens stored by `add_tokens`. None: there are none of this step. Raises UserError if damaged."""
        return read_tokens(self.folder, step)

    @property
    def last_step(self) -> int:
        """The last step that used any turn; 0 if there is none."""
        return int(self.rows("SELECT coalesce(max(step), 0) FROM credit")[0][0])

    # What steps were given

    def add_batch(self, step: int, batch: Mapping[str, Any]) -> None:
        """Store, as JSON, which episodes the step is trained on; durable when this returns."""
        text = json.dumps(batch)
        with self._transaction("write which episodes a step is given") as db:
            db.execute(records.INSERT_BATCH, (step, text, zlib.crc32(text.encode())))

    def batch(self, step: int) -> dict[str, Any] | None:
        """The batch stored by `add_batch` for the step. None: there is none, or it is damaged."""
        for text, checksum in self.rows("SELECT record, checksum FROM batches WHERE step = ?", (step,)):
            if zlib.crc32(text.encode()) == checksum:
                found: dict[str, Any] = json.loads(text)
                return found
        return None

    # Metrics and summary

    def add_metrics(self, step: int, metrics: Metrics) -> None:
        """Append one line. Several lines of one step are read as one row, in which later values win."""
        line = json.dumps({"step": step, **{name: float(value) for name, value in metrics.items()}})
        path = self.folder / "metrics.jsonl"
        with self._lock, _explained(self.folder, "write metrics.jsonl"):
            self._become_writer()
            with path.open("ab+") as file:
                file.seek(max(0, file.tell() - 1))
                is_torn = file.read(1) not in (b"", b"\n")  # a line that a crash cut short must not swallow this one
                file.write((("\n" if is_torn else "") + line + "\n").encode())

    def metrics(self) -> list[tuple[int, dict[str, float]]]:
        """Steps with their metrics, in order. Unreadable lines are left out."""
        return read_metrics(self.folder).rows

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Replace summary.json atomically; if it exists, the run has ended."""
        with self._lock, _explained(self.folder, "write summary.json"):
            self._become_writer()
            write_whole(self.folder / "summary.json", json.dumps(dict(summary), indent=2) + "\n")

    def summary(self) -> dict[str, Any] | None:
        """The summary. None: the run has not ended, or the file cannot be read."""
        with suppress(UserError):
            return read_summary(self.folder)
        return None

    def close(self) -> None:
        """Let another process write the run. Closing twice is allowed."""
        with self._lock:
            self._records.db.close()
            if self._journal is not None:
                self._journal.close()
                self._journal = None
            self._release_writer()

    # Inside

    def _warn_of_damages(self) -> None:
        for sentence in self.damages():
            logger.warning("%s: %s", self.folder, sentence)

    def _error_of(self, read: Callable[[Path], object]) -> UserError | None:
        """Why a file of the folder cannot be read. None: it can be."""
        try:
            read(self.folder)
        except UserError as error:
            return error
        return None

    def rows(self, sql: str, values: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        """The rows of an SQL query on run.db. Raises UserError if it cannot be read."""
        with _explained(self.folder, "read run.db"):
            return self._records.db.rows(sql, values)

    @contextmanager
    def _transaction(self, doing: str) -> Iterator[sqlite3.Connection]:
        with self._lock, _explained(self.folder, doing):
            self._become_writer()
            with self._records.db.transaction() as db:
                yield db

    def _become_writer(self) -> None:
        if self._writer_lock is not None:
            return
        with _explained(self.folder, "lock the run for writing"):
            self._writer_lock = hold(self.folder / LOCK)
        if self._writer_lock is None:
            raise UserError(
                f"another process is writing the run {str(self.folder)!r}, or this one is already; wait until it has "
                "ended (`await backend.close()` ends a LocalBackend), or choose another name (name=...)"
            )
        if self._records.damage is not None:
            with _explained(self.folder, "keep what can be read of run.db"):
                records.replace_damaged(self.folder, self._records.db)
            self._records.db.close()
            self._records = _connect(self.folder, is_begun=False)
        self._adopt(left_behind(self.folder))

    def _adopt(self, segments: tuple[Path, ...]) -> None:
        """Turn sessions left behind by killed processes into episodes with the session's id."""
        for found in read_unfinished(segments):
            rows = self.rows("SELECT record FROM episodes WHERE id = ?", (found.record.id,))
            kept = {turn.id for (record,) in rows for turn in decode_episode(record).session.turns}
            if found.record.turns and kept.isdisjoint(turn.id for turn in found.record.turns):
                with self._transaction("write an episode") as db:
                    broken_off = found.episode
                    db.execute(records.INSERT, records.row_of(broken_off, FinishedEpisode.of(broken_off)))
        discard(segments)

    def _release_writer(self) -> None:
        if self._writer_lock is not None:
            os.close(self._writer_lock)
            self._writer_lock = None


def _connect(folder: Path, *, is_begun: bool, reads_only: bool = False, checks: bool = True) -> records.Records:
    with _explained(folder, "open run.db"):
        opened = records.open_records(folder, is_begun=is_begun, reads_only=reads_only, checks=checks)
        ((found,),) = opened.db.rows("PRAGMA user_version")
    if found != FORMAT:
        opened.db.close()
        raise UserError(
            f"the run in {str(folder)!r} was written by another version of Ludus: its records have the format "
            f"{found}, this version reads {FORMAT}. Read it with the version that wrote it"
        )
    return opened


@contextmanager
def _explained(folder: Path, doing: str) -> Iterator[None]:
    """Turns disk errors into a UserError that names the folder and what to do."""
    try:
        yield
    except (sqlite3.OperationalError, sqlite3.DatabaseError, OSError) as error:
        cause = error.strerror or str(error) if isinstance(error, OSError) else str(error)
        raise UserError(
            f"cannot {doing} in {str(folder)!r}: {cause}. Make the folder writable or free some disk space, "
            "or put the run elsewhere (run_root=...); what was acknowledged before is safe, --resume continues it"
        ) from error
