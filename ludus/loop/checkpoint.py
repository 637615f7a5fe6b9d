"""Where a run stands, on disk: written whole or not at all, read back to go on as if nothing had happened.

Knows: folders, the run's progress.  Knows not: what a trainer saves.
Invariants: a folder named step-… was complete when it got its name; what a crash left half-written has another name and
is swept away; a run goes on from files alone that are as they were written.

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
    """The first group that was never started."""
    unconsumed: tuple[int, ...] = ()
    """Groups that were started and not trained on; they are played again after a resume."""
    train_seconds: float = 0.0
    eval_seconds: float = 0.0
    ledger: Ledger = field(default_factory=Ledger)
    """Of all tokens sampled until then. What was sampled between a checkpoint and a crash is not in it."""
    num_episodes: int = 0
    """In the run's record, at least: what of them is not there later was lost."""
    num_accounted: int = 0
    """Of these, that are in the ledger whatever became of them; what is recorded later may be recalled."""
    eval_before: Mapping[str, float] = field(default_factory=dict)
    """What the evaluation before training came to; empty without one."""
    memory: Memory = field(default_factory=dict)
    """What the algorithm knows of the steps trained."""
    data: Mapping[str, Fingerprint] = field(default_factory=dict)
    """Of the rows that are played, by the name of their source; of the only one it is ''. Empty: none are played."""
    curriculum: CurriculumState | None = None
    """Which rows rest. None: none ever does."""
    replay: ReplayState | None = None
    """Which groups are kept to be trained on again. None: none ever is."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    folder: Path
    progress: RunProgress
    files: Checksums
    """Of all other files when they were written."""

    @property
    def trainer_folder(self) -> Path:
        return self.folder / _TRAINER

    @property
    def has_trainer(self) -> bool:
        """Not its model alone."""
        return any(name.startswith(f"{_TRAINER}/") for name in self.files)


def save_checkpoint(
    root: Path, progress: RunProgress, *, save_trainer: Callable[[Path], object], keep: int
) -> Checkpoint:
    """Write `root/step-N` in one rename, then remove all but the latest `keep`.

    Raises UserError if the disk refuses; what was there before is then still there.
    """
    final = root / f"{_PREFIX}{progress.step:06d}"
    with _explained(final):
        for draft in root.glob(f"{_DRAFT}*"):  # of a save that failed, or a crash: room for this one
            shutil.rmtree(draft)
        there = _readable(final)
        if there is not None:  # the weights of a step are what they are; only the cursor may have moved
            saved = _write_progress(final, progress, there.files)
        else:
            saved = _write_whole(root / f"{_DRAFT}{final.name}", final, progress, save_trainer)
        for old in _folders(root)[:-keep]:
            shutil.rmtree(old)
    return saved


def save_whole(folder: Path, save: Callable[[Path], object]) -> None:
    """Have a folder written under another name, and give it its own when all of it is there.

    What had the name before has it until then.
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
    """Write what was counted since into the checkpoint of the progress' step, if there is one.

    Raises UserError if the disk refuses; what was there before is then still there.
    """
    final = root / f"{_PREFIX}{progress.step:06d}"
    there = _readable(final)
    if there is not None:
        with _explained(final):
            _write_progress(final, progress, there.files)


def copy_checkpoint(found: Checkpoint, root: Path) -> None:
    """Make it the first checkpoint below `root`, whose account begins with it. Raises UserError if the disk refuses."""
    final, draft = root / found.folder.name, root / f"{_DRAFT}{found.folder.name}"
    with _explained(final):
        shutil.rmtree(draft, ignore_errors=True)
        shutil.copytree(found.folder, draft)
        _write_progress(draft, RunProgress(found.progress.step, memory=found.progress.memory), found.files)
        draft.replace(final)


def drop_trainer(found: Checkpoint) -> None:
    """Remove what a resume would need; the model that lies beside it stays."""
    if found.has_trainer:
        files = {name: each for name, each in found.files.items() if not name.startswith(f"{_TRAINER}/")}
        _write_progress(found.folder, found.progress, files)
        shutil.rmtree(found.trainer_folder, ignore_errors=True)


def checkpoints(root: Path) -> list[Checkpoint]:
    """All that say what they are, by step; their other files may be damaged."""
    return [found for folder in _folders(root) if (found := _readable(folder)) is not None]


def latest_checkpoint(root: Path) -> Checkpoint | None:
    """The last of `checkpoints`. None: there is none."""
    return next(reversed(checkpoints(root)), None)


def whole_checkpoint(root: Path) -> Checkpoint | None:
    """The newest whose files all are as they were written. None: there never was a checkpoint.

    A warning says what is wrong with newer ones. Raises UserError if there are some and none is whole.
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
    """Those of later steps get another name: a run that goes on from `step` writes its own."""
    for folder in _folders(root):
        if folder.name > f"{_PREFIX}{step:06d}":
            set_aside(folder)


@contextmanager
def _explained(final: Path) -> Iterator[None]:
    """A disk that refuses is an error that says what to do."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"cannot write the checkpoint {str(final)!r}: {error.strerror or error}. Free some disk space or make the "
            "folder writable; earlier checkpoints are whole, and resuming goes on from the latest"
        ) from error


class _UnreadableError(ValueError):
    """`progress.json` is not what was written; the message says what it is instead."""


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
    if final.exists():  # and does not say what it is
        set_aside(final)
    (draft / _TRAINER).mkdir(parents=True)
    save_trainer(draft / _TRAINER)
    written = _write_progress(draft, progress, checksums(draft))
    for path in sorted(draft.rglob("*")):  # a rename is only as durable as what it renames
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
