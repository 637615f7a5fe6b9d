"""verl's functions on files, for paths of this machine; it has no HDFS.

Knows: paths.  Knows not: what is in the files.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from ludus.compat.members import takes
from ludus.errors import UserError


def exists(path: str, **_: Any) -> bool:
    return _local(path).exists()


def makedirs(name: str, mode: int = 0o777, exist_ok: bool = True, **_: Any) -> None:
    _local(name).mkdir(mode, parents=True, exist_ok=exist_ok)


def copy(src: str, dst: str, **_: Any) -> bool:
    """Copies a file, or a folder with all that is in it."""
    source, target = _local(src), _local(dst)
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        shutil.copy(source, target)
    return True


@takes("verl", "utils.fs.copy_to_local")
def copy_to_local(
    src: str,
    cache_dir: str | None = None,  # noqa: ARG001  verl's arguments; `takes` says that they do nothing
    filelock: str = ".file.lock",  # noqa: ARG001
    verbose: bool = False,  # noqa: ARG001
    always_recopy: bool = False,  # noqa: ARG001
    use_shm: bool = False,  # noqa: ARG001
) -> str:
    """The path itself: it is here."""
    return str(_local(src))


def _local(path: str) -> Path:
    if path.startswith("hdfs:"):
        raise UserError(f"{path!r} is a path of HDFS, which is not reached from here; copy it with its own tools")
    return Path(path).expanduser()
