"""Bookkeeping of KV pages: who holds which page, and which tokens an index of prefixes can find again.

Knows: page numbers, token ids, versions.  Knows not: tensors, sequences, steps.

A page holds the keys and values of `page_tokens` neighbouring tokens. It is in one of three states:

    free        nobody holds it, nothing can be found in it
    held        `refs` sequences have it in their tables
    evictable   nobody holds it, but the index can find its tokens; taken again oldest first

The index is a tree per weight version. A node is a page together with the tokens that can be found in it,
its parent the page before. Only full pages have children; a page that its sequence still fills is in the index
with the tokens it holds so far, and others copy from it.

Invariants: only full pages are held twice; a child is held or evictable only below an indexed parent, and is
always older in the order of eviction than its parent, so that no eviction cuts a chain.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence as TokenSequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """What the index knows of a prompt."""

    pages: tuple[int, ...]
    """Full pages, to be shared."""
    num_tokens: int
    """Tokens found, those in the page to copy included."""
    copy_from: int | None
    """Page whose first tokens are the rest of the match. None: the match ends with a full page."""


@dataclass(frozen=True, slots=True)
class _Entry:
    parent: int
    token_ids: tuple[int, ...]
    version: int


class PagePool:
    """All pages of one engine. Not thread-safe: one engine, one thread."""

    def __init__(self, num_pages: int, *, page_tokens: int) -> None:
        self.num_pages = num_pages
        self.page_tokens = page_tokens
        self._free = list(range(num_pages - 1, -1, -1))
        self._refs = [0] * num_pages
        self._evictable: collections.OrderedDict[int, None] = collections.OrderedDict()
        self._entries: dict[int, _Entry] = {}
        # parent → first token → pages; a parent is a page, or the root of a version (negative)
        self._children: dict[int, dict[int, list[int]]] = {}

    def __repr__(self) -> str:
        return f"<PagePool pages={self.num_pages} free={len(self._free)} evictable={len(self._evictable)}>"

    @property
    def num_available(self) -> int:
        """Pages that `allocate` has left."""
        return len(self._free) + len(self._evictable)

    def pages_for(self, num_tokens: int) -> int:
        """Pages that hold `num_tokens` tokens."""
        return -(-num_tokens // self.page_tokens)

    def match(self, version: int, token_ids: TokenSequence[int], *, max_tokens: int) -> PrefixMatch:
        """The longest known prefix of `token_ids`, of at most `max_tokens` tokens. Changes nothing."""
        pages: list[int] = []
        parent, num_tokens = _root(version), 0
        while num_tokens < max_tokens:
            wanted = tuple(token_ids[num_tokens : min(num_tokens + self.page_tokens, max_tokens)])
            page, num_common = self._best_child(parent, wanted)
            num_tokens += num_common
            if num_common < self.page_tokens:
                return PrefixMatch(tuple(pages), num_tokens, page)
            assert page is not None, "a full match without its page"
            pages.append(page)
            parent = page
        return PrefixMatch(tuple(pages), num_tokens, None)

    def acquire(self, match: PrefixMatch) -> list[int]:
        """A table with the full pages of `match`, held once more. The page to copy from is only marked as used."""
        for page in match.pages:
            self._hold(page)
        if match.copy_from is not None and match.copy_from in self._evictable:
            self._evictable.move_to_end(match.copy_from)
        return list(match.pages)

    def allocate(self, num_pages: int) -> list[int] | None:
        """Fresh pages, each held once; None, and nothing changed, if there are too few."""
        if num_pages > self.num_available:
            return None
        pages = [self._free.pop() if self._free else self._evict_oldest() for _ in range(num_pages)]
        for page in pages:
            self._refs[page] = 1
        return pages

    def register(self, version: int, token_ids: TokenSequence[int], pages: list[int], *, num_tokens: int) -> None:
        """Make the first `num_tokens` tokens of a table findable.

        Modifies `pages`: a full page whose tokens the index already knows is exchanged for the known one.
        """
        parent = _root(version)
        for page_idx in range(self.pages_for(num_tokens)):
            start = page_idx * self.page_tokens
            held = tuple(token_ids[start : min(start + self.page_tokens, num_tokens)])
            page = pages[page_idx]
            entry = self._entries.get(page)
            if entry is None or entry.token_ids != held:
                known = self._covering_child(parent, held, but_not=page)
                if known is None:
                    self._forget(page)
                    self._entries[page] = _Entry(parent, held, version)
                    self._children.setdefault(parent, {}).setdefault(held[0], []).append(page)
                elif len(held) == self.page_tokens:
                    self._hold(known)
                    self._forget(page)
                    self.release([page])
                    pages[page_idx] = known
                else:
                    return
            parent = pages[page_idx]

    def release(self, pages: TokenSequence[int]) -> None:
        """Give back a table. Findable pages stay so until they are evicted."""
        for page in reversed(pages):
            self._refs[page] -= 1
            assert self._refs[page] >= 0, f"page {page} was released too often"
            if self._refs[page] == 0:
                if page in self._entries:
                    self._evictable[page] = None
                else:
                    self._free.append(page)

    def drop_versions_before(self, version: int) -> None:
        """Forget everything computed with older weights; pages still held stay with their holders."""
        for page in [page for page, entry in self._entries.items() if entry.version < version]:
            self._forget(page)
            if page in self._evictable:
                del self._evictable[page]
                self._free.append(page)

    def _best_child(self, parent: int, wanted: tuple[int, ...]) -> tuple[int | None, int]:
        best, best_common = None, 0
        for page in self._children.get(parent, {}).get(wanted[0], ()):
            num_common = _num_common(self._entries[page].token_ids, wanted)
            if num_common > best_common:
                best, best_common = page, num_common
        return best, best_common

    def _covering_child(self, parent: int, held: tuple[int, ...], *, but_not: int) -> int | None:
        for page in self._children.get(parent, {}).get(held[0], ()):
            if page != but_not and self._entries[page].token_ids[: len(held)] == held:
                return page
        return None

    def _forget(self, page: int) -> None:
        entry = self._entries.pop(page, None)
        if entry is None:
            return
        siblings = self._children[entry.parent]
        siblings[entry.token_ids[0]].remove(page)
        if not siblings[entry.token_ids[0]]:
            del siblings[entry.token_ids[0]]
        if not siblings:
            del self._children[entry.parent]

    def _hold(self, page: int) -> None:
        self._evictable.pop(page, None)
        self._refs[page] += 1

    def _evict_oldest(self) -> int:
        page, _ = self._evictable.popitem(last=False)
        assert page not in self._children, f"page {page} was evicted before the pages that follow it"
        self._forget(page)
        return page


def _root(version: int) -> int:
    return -1 - version


def _num_common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    num_common = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        num_common += 1
    return num_common
