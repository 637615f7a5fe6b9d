"""Which commit of Ludus trained a run.

Knows: git, where the package lies in a checkout.  Knows not: runs.
"""

from __future__ import annotations

import subprocess
from functools import lru_cache
from pathlib import Path

_FOLDER = Path(__file__).parent.parent
_TIMEOUT_S = 10.0  # of a command that takes milliseconds


@lru_cache
def own_commit() -> str | None:
    """The commit of the checkout that this process runs. Asked once: later changes are not in this process."""
    return source_commit(_FOLDER)


def source_commit(folder: Path) -> str | None:
    """The commit of the checkout that `folder` lies in, followed by `+` if tracked files were changed.

    None: the package does not run from a checkout, or there is no git here.
    """
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None or _git(folder, "ls-files", "--error-unmatch", ".") is None:  # a checkout of something else
        return None
    return commit + ("+" if _git(folder, "status", "--porcelain", "--untracked-files=no") else "")


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
