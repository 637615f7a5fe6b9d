"""Gives an episode that is played again the answers that were sampled for it before its process was killed.

Knows: recorded turns, calls.  Knows not: who keeps records, engines.
Invariant: a recorded answer is given to at most one call, and only to the same one: the same prompt, token by token,
with the same sampling and seed. Aborted answers are never given.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator, Sequence

from ludus.types import Call, Sampled, Sampling, SessionRecord

_Asked = tuple[bytes, Sampling]
"""The digest of a prompt, and its sampling."""


class Recall:
    """The recorded answers of one session. Not thread-safe."""

    def __init__(self, *records: SessionRecord, newest: int) -> None:
        """newest: answers with tokens of later weights are not given: those weights were lost with the process."""
        self._newest = newest
        self._answers: dict[_Asked, Sampled] = {}
        self.num_given = 0
        for record in records:
            self.add(record)

    def __repr__(self) -> str:
        return f"Recall(answers={len(self._answers)}, given={self.num_given})"

    def add(self, record: SessionRecord) -> None:
        """Add the answers of a record; they replace those added earlier for the same calls."""
        self._answers.update(self._read(record))

    def drop(self, record: SessionRecord) -> None:
        """Remove the answers of a record, even if another record had them too."""
        for asked, _ in self._read(record):
            self._answers.pop(asked, None)

    def answer(self, call: Call) -> Sampled | None:
        """The answer that was sampled for this call. None: there is none, and an engine has to sample it."""
        found = self._answers.pop((_digest(call.prompt_ids), call.sampling), None) if self._answers else None
        self.num_given += found is not None
        return found

    def _read(self, record: SessionRecord) -> Iterator[tuple[_Asked, Sampled]]:
        for turn in record.turns:
            sampled = turn.sampled
            if sampled.stop_reason != "abort" and max(sampled.versions, default=0) <= self._newest:
                prompt = record.path_ids(turn.node)[: -len(sampled.token_ids)]
                yield (_digest(prompt), turn.sampling), sampled


def _digest(token_ids: Sequence[int]) -> bytes:
    return hashlib.blake2b(array("q", token_ids).tobytes(), digest_size=16).digest()
