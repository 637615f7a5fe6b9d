"""A cache of usable answers on disk, so that no question is paid for twice.

Knows: files, digests.  Knows not: what is asked.
Invariant: files are written completely or not at all, even if others write to the same folder.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from ludus.errors import UserError
from ludus.processes.files import write_whole
from ludus.rewards.chat.base import Json


class AnswerCache:
    """A folder of answers, by question and model."""

    def __init__(self, folder: Path | str) -> None:
        self._folder = Path(folder).expanduser()

    def key(self, identity: Json, messages: Sequence[Json], schema: Json) -> str:
        asked = json.dumps([dict(identity), list(messages), dict(schema)], sort_keys=True, default=str)
        return hashlib.sha256(asked.encode()).hexdigest()

    def get(self, key: str) -> str | None:
        """The stored answer. None: there is none, or its file cannot be read."""
        try:
            return self._path(key).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return None

    def put(self, key: str, text: str) -> None:
        """Store an answer. Raises UserError if the folder cannot be written."""
        path = self._path(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, text)
        except OSError as error:
            raise UserError(f"cannot write the judge's cache in {str(self._folder)!r}: {error.strerror}") from None

    def _path(self, key: str) -> Path:
        return self._folder / key[:2] / f"{key}.txt"
