"""Checkpoints: where a run stands, written to disk whole or not at all, and read back to resume it.

Knows: folders, the run's progress.  Knows not: what a trainer saves.
Invariants: a folder named step-… was complete when it got its name; what a crash left half-written has another name and
is removed; a run resumes only from files whose checksums are right.

    checkpoints/step-000040/  progress.json  trainer/…

`progress.json` is written last, with the checksum of every other file and of itself.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ludus.algorithms.base import Memory
from ludus.episodes.ledger import Ledger
from ludus.errors import UserError
from ludus.loop.fingerprint import Fingerprint
from ludus.processes.checksums import Checksums, checksums, damage
from ludus.processes.files import set_aside, sync
from ludus.rollout.curriculum import CurriculumState
from ludus.rollout.replay import ReplayState

logger = logging.getLogger(__name__)

_PREFIX = "step-"
_DRAFT = ".draft-"
_PROGRESS = "progress.json"
_TRAINER = "trainer"


@dataclass(frozen=True, slots=True)
class RunProgress:
    """Where a run stands between two steps.

    Every random number of a run is derived from its seed and the group's number, so the cursor is their whole state.
    """

    step: int = 0
    """Steps trained; also the version of the weights."""
    next_ordinal: int = 0
    """Number of the first group that was never started."""
    unconsumed: tuple[int, ...] = ()
    """Groups that were started but not trained on; they are played again after a resume."""
    train_seconds: float = 0.0
    eval_seconds: float = 0.0
    ledger: Ledger = field(default_factory=Ledger)
    """Of all tokens sampled until then. Tokens sampled between a checkpoint and a crash are not in it."""
    num_episodes: int = 0
    """Episodes in the run store at that time. If fewer are found later, some were lost."""
    num_accounted: int = 0
    """How many of them the ledger accounts for. Later ones were cut off by a crash; their answers may be given again
    (`Recall`)."""
    eval_before: Mapping[str, float] = field(default_factory=dict)
    """Results of the evaluation before training; empty without one."""
    memory: Memory = field(default_factory=dict)
    """What the algorithm remembers of earlier steps."""
    data: Mapping[str, Fingerprint] = field(default_factory=dict)
    """Fingerprints of the training rows by the name of their dataset, '' if there is only one. Empty: no rows."""
    curriculum: CurriculumState | None = None
    """Which rows are being skipped. None: there is no curriculum."""
    replay: ReplayState | None = None
    """Which groups are kept to be trained on again. None: there is no replay."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    folder: Path
    progress: RunProgress
    files: Checksums
    """Checksums of all other files, taken when they were written."""

    @property
    def trainer_folder(self) -> Path:
        return self.folder / _TRAINER

    @property
    def has_trainer(self) -> bool:
        """It holds the trainer's state, and can be resumed from. False: the model alone is left."""
        return any(name.startswith(f"{_TRAINER}/") for name in self.files)


def save_checkpoint(
    root: Path, progress: RunProgress, *, save_trainer: Callable[[Path], object], keep: int
) -> Checkpoint:
    """Write `root/step-N` in one rename, then remove all but the latest `keep`.

    Raises UserError if it cannot be written; earlier checkpoints are then left as they were.
    """
    final = root / f"{_PREFIX}{progress.step:06d}"
    with _explained(final):
        for draft in root.glob(f"{_DRAFT}*"):  # left by a failed save or a crash; this one needs the room
            shutil.rmtree(draft)
        there = _readable(final)
        if there is not None:  # the weights of a step do not change; only the progress may have moved on
            saved = _write_progress(final, progress, there.files)
        else:
            saved = _write_whole(root / f"{_DRAFT}{final.name}", final, progress, save_trainer)
        for old in _folders(root)[:-keep]:
            shutil.rmtree(old)
    return saved


def save_whole(folder: Path, save: Callable[[Path], object]) -> None:
    """Have `save` write a folder under a temporary name, and rename it when it is complete.

    A folder that has the name already stays in place until then.
    """
    draft, before = (folder.with_name(f"{prefix}{folder.name}") for prefix in (_DRAFT, ".before-"))
    for left in (draft, before):
        shutil.rmtree(left, ignore_errors=True)
    save(draft)
    if folder.exists():
        folder.rename(before)
    draft.rename(folder)
    shutil.rmtree(before, ignore_errors=True)


def update_checkpoint(root: Path, progress: RunProgress) -> None:
    """Replace the progress in the checkpoint of `progress.step`, if there is one.

    Raises UserError if it cannot be written; the checkpoint is then left as it was.
    """
    final = root / f"{_PREFIX}{progress.step:06d}"
    there = _readable(final)
    if there is not None:
        with _explained(final):
            _write_progress(final, progress, there.files)


def copy_checkpoint(found: Checkpoint, root: Path) -> None:
    """Copy it to `root` as the first checkpoint of another run, whose ledger begins empty. Raises UserError if it
    cannot be written."""
    final, draft = root / found.folder.name, root / f"{_DRAFT}{found.folder.name}"
    with _explained(final):
        shutil.rmtree(draft, ignore_errors=True)
        shutil.copytree(found.folder, draft)
        _write_progress(draft, RunProgress(found.progress.step, memory=found.progress.memory), found.files)
        draft.replace(final)


def drop_trainer(found: Checkpoint) -> None:
    """Remove the trainer's state, which only a resume needs; the model beside it stays."""
    if found.has_trainer:
        files = {name: each for name, each in found.files.items() if not name.startswith(f"{_TRAINER}/")}
        _write_progress(found.folder, found.progress, files)
        shutil.rmtree(found.trainer_folder, ignore_errors=True)


def checkpoints(root: Path) -> list[Checkpoint]:
    """All whose `progress.json` can be read, by step; their other files are not checked."""
    return [found for folder in _folders(root) if (found := _readable(folder)) is not None]


def latest_checkpoint(root: Path) -> Checkpoint | None:
    """The last of `checkpoints`. None: there is none."""
    return next(reversed(checkpoints(root)), None)


def whole_checkpoint(root: Path) -> Checkpoint | None:
    """The newest checkpoint whose checksums are all right. None: there never was a checkpoint.

    A warning says what is wrong with newer ones. Raises UserError if there are checkpoints and all are damaged.
    """
    damaged: list[str] = []
    for folder in reversed(_folders(root)):
        try:
            found = _read(folder)
            wrong = damage(folder, found.files)
        except _UnreadableError as error:
            wrong = str(error)
        if wrong is None:
            if damaged:
                said = "; ".join(damaged)
                logger.warning(
                    "damaged: %s. Going on from step %d",
                    said,
                    found.progress.step,
                )
            return found
        damaged.append(f"checkpoint {folder.name}: {wrong}")
    if damaged:
        raise UserError(
            f"no checkpoint in {str(root)!r} is whole: {'; '.join(damaged)}. Restore one from a copy, or move them "
            "away to begin again with the model as it was before the first step; what was played is kept"
        )
    return None


def set_aside_later(root: Path, step: int) -> None:
    """Rename checkpoints of later steps: a run that resumes from `step` will write its own."""
    for folder in _folders(root):
        if folder.name > f"{_PREFIX}{step:06d}":
            set_aside(folder)


@contextmanager
def _explained(final: Path) -> Iterator[None]:
    """Turns an OSError into a UserError that says what to do."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"cannot write the checkpoint {str(final)!r}: {error.strerror or error}. Free some disk space or make the "
            "folder writable; earlier checkpoints are whole, and resuming goes on from the latest"
        ) from error


class _UnreadableError(ValueError):
    """`progress.json` cannot be read; the message says why."""


def _readable(folder: Path) -> Checkpoint | None:
    try:
        return _read(folder)
    except _UnreadableError:
        return None


def _read(folder: Path) -> Checkpoint:
    try:
        kept = json.loads((folder / _PROGRESS).read_bytes())
        values, files = kept["progress"], kept["files"]
        if kept["sha256"] != _own_sum(values, files):
            raise ValueError
    except FileNotFoundError:
        raise _UnreadableError(f"{_PROGRESS} is missing") from None
    except OSError as error:
        raise _UnreadableError(f"{_PROGRESS} cannot be read: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise _UnreadableError(f"{_PROGRESS} does not hold what was written") from None
    values["unconsumed"] = tuple(values["unconsumed"])
    values["ledger"] = Ledger(**values["ledger"])
    values["data"] = {name: Fingerprint.of_json(data) for name, data in values["data"].items()}
    values["curriculum"] = CurriculumState.of_json(values["curriculum"]) if values["curriculum"] else None
    values["replay"] = ReplayState.of_json(values["replay"]) if values.get("replay") else None
    return Checkpoint(folder, RunProgress(**values), files)


def _write_whole(draft: Path, final: Path, progress: RunProgress, save_trainer: Callable[[Path], object]) -> Checkpoint:
    if final.exists():  # a damaged one: its progress could not be read
        set_aside(final)
    (draft / _TRAINER).mkdir(parents=True)
    save_trainer(draft / _TRAINER)
    written = _write_progress(draft, progress, checksums(draft))
    for path in sorted(draft.rglob("*")):  # a rename makes nothing durable that is not on disk yet
        sync(path)
    draft.replace(final)
    sync(final.parent)
    return replace(written, folder=final)


def _write_progress(folder: Path, progress: RunProgress, files: Checksums) -> Checkpoint:
    values = asdict(progress)
    kept = {"progress": values, "files": files, "sha256": _own_sum(values, files)}
    draft = folder / f"{_PROGRESS}.part"
    draft.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
    sync(draft)
    draft.replace(folder / _PROGRESS)
    sync(folder)
    return Checkpoint(folder, progress, files)


def _own_sum(values: Mapping[str, Any], files: Checksums) -> str:
    return hashlib.sha256(json.dumps([values, files]).encode()).hexdigest()


def _folders(root: Path) -> list[Path]:
    return sorted(path for path in root.glob(f"{_PREFIX}*") if path.is_dir())
