"""Token ids to text while they are sampled, never half a character.

Knows: the tokenizer.  Knows not: tags, messages, wire protocols.
Invariant: all returned pieces together equal `tokenizer.decode` of all ids that are not skipped.

    ids   … kept before │ window start … read │ fresh …
                        └ context, already    └ text not returned yet
                          returned
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ludus.text.tokenizer import Tokenizer

_REPLACEMENT = "\ufffd"
"""What bytes decode to while they are no whole character."""


class Detokenizer:
    """Incremental decoder of one answer. Source: the two-offset scheme of vLLM's and TGI's detokenizers."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True, shown: Collection[str] = ()) -> None:
        """shown: texts of special tokens that are not skipped."""
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._shown_ids = frozenset(tokenizer.special_ids[text] for text in shown if text in tokenizer.special_ids)
        self._window: list[int] = []
        self._num_read = 0
        """Ids at the start of the window whose text was returned; the decoder needs them as context."""
        self._retry_at = 0
        """Fresh ids to wait for before the next try; grows with the hold so that garbage bytes stay linear."""

    def feed(self, ids: Sequence[int]) -> str:
        """The text that `ids` complete; '' while a character is still open."""
        if self._skip_special:
            ids = [idx for idx in ids if idx in self._shown_ids or not self._tokenizer.is_special(idx)]
        self._window.extend(ids)
        num_fresh = len(self._window) - self._num_read
        if not num_fresh or num_fresh < self._retry_at or self._tokenizer.is_byte(self._window[-1]):
            return ""
        text = self._fresh_text()
        if text.endswith(_REPLACEMENT):
            self._retry_at = num_fresh + 1 + num_fresh // 4
            return ""
        self._advance()
        return text

    def finish(self) -> str:
        """What is still held back, broken characters included. The detokenizer is then done."""
        if self._num_read == len(self._window):
            return ""
        text = self._fresh_text()
        self._advance()
        return text

    def _fresh_text(self) -> str:
        before = self._tokenizer.decode(self._window[: self._num_read]) if self._num_read else ""
        return self._tokenizer.decode(self._window)[len(before) :]

    def _advance(self) -> None:
        self._window = self._window[self._num_read :]
        self._num_read = len(self._window)
        self._retry_at = 0
