"""Answers that were usable, on disk: the same question is not paid for twice.

Knows: files, digests.  Knows not: what is asked.
Invariant: a file is there as a whole or not at all, whoever else writes the same folder.
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
    """A folder of answers, by what was asked of whom."""

    def __init__(self, folder: Path | str) -> None:
        self._folder = Path(folder).expanduser()

    def key(self, identity: Json, messages: Sequence[Json], schema: Json) -> str:
        asked = json.dumps([dict(identity), list(messages), dict(schema)], sort_keys=True, default=str)
        return hashlib.sha256(asked.encode()).hexdigest()

    def get(self, key: str) -> str | None:
        """None: nobody has asked, or the file cannot be read."""
        try:
            return self._path(key).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return None

    def put(self, key: str, text: str) -> None:
        """Raises UserError if the folder cannot be written."""
        path = self._path(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, text)
        except OSError as error:
            raise UserError(f"cannot write the judge's cache in {str(self._folder)!r}: {error.strerror}") from None

    def _path(self, key: str) -> Path:
        return self._folder / key[:2] / f"{key}.txt"
