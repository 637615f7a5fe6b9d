"""Keys of servers on this machine, for programs of the same user: a file each, which nobody else can read.

Knows: files, URLs.  Knows not: who serves, what a key opens.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from ludus.errors import UserError
from ludus.http.keys import is_loopback
from ludus.processes.files import user_cache

_SCHEMES = {"http": 80, "https": 443}


@contextmanager
def kept_key(url: str, key: str) -> Iterator[Path]:
    """The file in which programs on this machine find the key of the server at `url`, until the block ends.

    Raises UserError if it cannot be written.
    """
    path = _path(url)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.parent.chmod(0o700)
        path.unlink(missing_ok=True)  # of a server that was killed
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(key)
    except OSError as error:
        raise UserError(
            f"the key of {url} cannot be kept in {path}: {error.strerror}; give the server a key"
        ) from error
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def found_key(url: str) -> str | None:
    """The key of the server at `url`, if it runs on this machine as the same user. None: there is no such file."""
    try:
        return _path(url).read_text() if is_loopback(urlsplit(url).hostname or "") else None
    except OSError:
        return None


def _path(url: str) -> Path:
    parts = urlsplit(url)
    return user_cache() / "keys" / str(parts.port or _SCHEMES.get(parts.scheme, 80))
