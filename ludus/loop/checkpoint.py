"""Where a run stands, on disk: written whole or not at all, read back to go on as if nothing had happened.

Knows: folders, the run's progress.  Knows not: what a trainer saves.
Invariant: a folder named step-… is complete; what a crash left half-written has another name and is swept away.

    checkpoints/step-000040/  progress.json  trainer/…
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ludus.algorithms.base import Memory
from ludus.episodes.ledger import Ledger
from ludus.errors import UserError
from ludus.loop.fingerprint import Fingerprint
from ludus.processes.files import sync
from ludus.rollout.curriculum import CurriculumState

_PREFIX = "step-"
_DRAFT = ".draft-"
_PROGRESS = "progress.json"


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
    eval_before: Mapping[str, float] = field(default_factory=dict)
    """What the evaluation before training came to; empty without one."""
    memory: Memory = field(default_factory=dict)
    """What the algorithm knows of the steps trained."""
    data: Mapping[str, Fingerprint] = field(default_factory=dict)
    """Of the rows that are played, by the name of their source; of the only one it is ''. Empty: none are played."""
    curriculum: CurriculumState | None = None
    """Which rows rest. None: none ever does."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    folder: Path
    progress: RunProgress

    @property
    def trainer_folder(self) -> Path:
        return self.folder / "trainer"


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
        if final in _complete(root):  # the weights of a step are what they are; only the cursor may have moved
            _write_progress(final, progress)
        else:
            _write_whole(root / f"{_DRAFT}{final.name}", final, progress, save_trainer)
        for old in _complete(root)[:-keep]:
            shutil.rmtree(old)
    return Checkpoint(final, progress)


def update_checkpoint(root: Path, progress: RunProgress) -> None:
    """Write what was counted since into the checkpoint of the progress' step, if there is one.

    Raises UserError if the disk refuses; what was there before is then still there.
    """
    final = root / f"{_PREFIX}{progress.step:06d}"
    if final in _complete(root):
        with _explained(final):
            _write_progress(final, progress)


def copy_checkpoint(found: Checkpoint, root: Path) -> None:
    """Make it the first checkpoint below `root`, whose account begins with it. Raises UserError if the disk refuses."""
    final, draft = root / found.folder.name, root / f"{_DRAFT}{found.folder.name}"
    with _explained(final):
        shutil.rmtree(draft, ignore_errors=True)
        shutil.copytree(found.folder, draft)
        _write_progress(draft, RunProgress(found.progress.step, memory=found.progress.memory))
        draft.replace(final)


def latest_checkpoint(root: Path) -> Checkpoint | None:
    """The checkpoint of the highest step. None: there is no whole one."""
    complete = _complete(root)
    return _read(complete[-1]) if complete else None


def checkpoints(root: Path) -> list[Checkpoint]:
    """All whole checkpoints, by step."""
    return [_read(folder) for folder in _complete(root)]


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


def _read(folder: Path) -> Checkpoint:
    values = json.loads((folder / _PROGRESS).read_text(encoding="utf-8"))
    values["unconsumed"] = tuple(values["unconsumed"])
    values["ledger"] = Ledger(**values["ledger"])
    values["data"] = {name: Fingerprint.of_json(data) for name, data in values["data"].items()}
    values["curriculum"] = CurriculumState.of_json(values["curriculum"]) if values["curriculum"] else None
    return Checkpoint(folder, RunProgress(**values))


def _write_whole(draft: Path, final: Path, progress: RunProgress, save_trainer: Callable[[Path], object]) -> None:
    for path in (draft, final):
        if path.exists():
            shutil.rmtree(path)
    (draft / "trainer").mkdir(parents=True)
    save_trainer(draft / "trainer")
    _write_progress(draft, progress)
    for path in sorted(draft.rglob("*")):  # a rename is only as durable as what it renames
        sync(path)
    draft.replace(final)
    sync(final.parent)


def _write_progress(folder: Path, progress: RunProgress) -> None:
    draft = folder / f"{_PROGRESS}.part"
    draft.write_text(json.dumps(asdict(progress), indent=2) + "\n", encoding="utf-8")
    sync(draft)
    draft.replace(folder / _PROGRESS)
    sync(folder)


def _complete(root: Path) -> list[Path]:
    return sorted(path for path in root.glob(f"{_PREFIX}*") if (path / _PROGRESS).is_file())
