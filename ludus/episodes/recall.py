"""Answers that were sampled for a session before its process was killed: a call that asks for the same is given them.

Knows: recorded turns, calls.  Knows not: who keeps records, engines.
Invariant: a recorded answer is given to one call at most, and to none but the one that it was sampled for: the same
prompt, token by token, the same sampling and the same seed. Answers that were broken off are given to nobody.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator, Sequence

from ludus.types import Call, Sampled, Sampling, SessionRecord

_Asked = tuple[bytes, Sampling]
"""The digest of a prompt, and how it was sampled."""


class Recall:
    """The answers of one session. Not thread-safe."""

    def __init__(self, *records: SessionRecord, newest: int) -> None:
        """newest: answers with a token of later weights are not given: those weights were lost with the process."""
        self._newest = newest
        self._answers: dict[_Asked, Sampled] = {}
        self.num_given = 0
        for record in records:
            self.add(record)

    def __repr__(self) -> str:
        return f"Recall(answers={len(self._answers)}, given={self.num_given})"

    def add(self, record: SessionRecord) -> None:
        """Its answers are given, each in the place of one that was added for the same call before."""
        self._answers.update(self._read(record))

    def drop(self, record: SessionRecord) -> None:
        """Its answers are given to nobody, whoever was given them before."""
        for asked, _ in self._read(record):
            self._answers.pop(asked, None)

    def answer(self, call: Call) -> Sampled | None:
        """What was sampled for this call. None: nothing was, and an engine is asked."""
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
