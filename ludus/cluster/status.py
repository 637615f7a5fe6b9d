"""Stores the status of a run's processes in its folder, for other terminals: `roles.json`.

Knows: one file.  Knows not: what the processes do, whether they live at this moment.
Invariant: the file is replaced atomically, and readable only by its owner, as it holds the key of the run.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from ludus.errors import UserError

NAME = "roles.json"
State = Literal["starting", "ready", "lost", "ended"]


@dataclass(frozen=True, slots=True)
class RoleView:
    """One process."""

    role: str
    index: int
    state: State
    process: str
    """The launcher's name for it."""
    host: str
    """'' until it is ready, as is `url`."""
    url: str
    num_restarts: int
    log: str
    changed_at: float
    """time.time()"""


@dataclass(frozen=True, slots=True)
class HeadView:
    """The head of the run."""

    pid: Annotated[int, msgspec.Meta(gt=0)]
    """Greater than 0, because a signal to 0 or a negative pid reaches many processes."""
    host: str
    scheduler: str
    job: str | None
    """Id of its job at the scheduler. None: it has none."""
    url: str
    """Address of the registry. '': the run has no other processes."""
    key: str
    started_at: float


@dataclass(frozen=True, slots=True)
class RunStatus:
    head: HeadView
    roles: Sequence[RoleView] = ()


_decode = msgspec.json.Decoder(RunStatus).decode  # see ludus.runs.codec.Decoder


class _DamagedError(UserError):
    """The file is damaged."""


def write_status(folder: Path, run_status: RunStatus) -> None:
    """Replace the status in the run's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    new = folder / f".{NAME}.new"
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:  # noqa: PTH123  (Path.open sets no mode)
        json.dump(asdict(run_status), file, indent=1)
    new.replace(folder / NAME)


def read_status(folder: Path) -> RunStatus | None:
    """The status of the run. None: it has no running process."""
    try:
        content = (folder / NAME).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"cannot read {folder / NAME}: {error.strerror}; it is its owner's alone") from None
    try:
        return _decode(content)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise _DamagedError(
            f"{folder / NAME} is damaged: which processes the run has is not known. If none lives any more, remove it"
        ) from None


def is_free(folder: Path) -> bool:
    """Whether the folder has no status, this process's own, or one that cannot be read."""
    try:
        run_status = read_status(folder)
    except _DamagedError:
        return True
    return run_status is None or (run_status.head.pid, run_status.head.host) == (os.getpid(), socket.gethostname())


def clear_status(folder: Path) -> None:
    """Remove the status when the run has ended, unless it is that of another head."""
    if is_free(folder):
        (folder / NAME).unlink(missing_ok=True)
