"""The seed of every sample in a session, so that a run can be repeated.

Knows: the session's seed and the prompts so far.  Knows not: how an engine turns a seed into tokens.
Invariant: a seed depends on the prompt, not on time: concurrent sub-agents get the same seeds in every run.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

# Seeds are stored as JSON and in SQLite, whose integers have 63 bits and a sign; one bit is left for seed + choice.
_SEED_BITS = 62


class Seeds:
    """Derives seeds from (session seed, prompt, how often this prompt came before). Not thread-safe."""

    def __init__(self, session_seed: int) -> None:
        self._session_seed = session_seed
        self._num_asked: dict[bytes, int] = {}
        self._by_key: dict[tuple[str, bytes], int] = {}
        """By retry key and prompt: a request that is sent again because it was broken off gets the same seed."""
        self._last: tuple[tuple[int, ...], hashlib.blake2b] = ((), hashlib.blake2b(digest_size=16))
        """The last prompt and its digest, which the next prompt most often extends."""

    def draw(self, prompt_ids: Sequence[int], retry_key: str | None = None) -> int:
        """The seed of the next sample for this prompt: another one for each draw, but the same for the same retry key.

        retry_key: None: the request has none.
        """
        prompt = self._digest(tuple(prompt_ids))
        if retry_key is not None and (retry_key, prompt) in self._by_key:
            return self._by_key[retry_key, prompt]
        ordinal = self._num_asked.get(prompt, 0)
        self._num_asked[prompt] = ordinal + 1
        drawn = _hash_int(f"{self._session_seed}/{prompt.hex()}/{ordinal}")
        if retry_key is not None:
            self._by_key[retry_key, prompt] = drawn
        return drawn

    def _digest(self, prompt_ids: tuple[int, ...]) -> bytes:
        asked, digest = self._last
        if prompt_ids[: len(asked)] != asked:
            asked, digest = (), hashlib.blake2b(digest_size=16)
        digest = digest.copy()
        digest.update(array("q", prompt_ids[len(asked) :]))
        self._last = (prompt_ids, digest)
        return digest.digest()


def session_seed(session_id: str) -> int:
    """The seed of a session without one: a digest of its id."""
    return _hash_int(session_id)


def _hash_int(text: str) -> int:
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> (64 - _SEED_BITS)
