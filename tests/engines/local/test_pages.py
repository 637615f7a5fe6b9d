"""Page bookkeeping: exact sharing, eviction, versions."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.engines.local.pages import PagePool
from tests.engines.local.conftest import check_pages


def test_a_prefix_is_found_to_the_token() -> None:
    """Full pages are shared, the page in which two prompts part is to be copied, and never more than was asked for."""
    pool = PagePool(8, page_tokens=4)
    tokens = list(range(10))
    pages = pool.allocate(3)
    assert pages is not None
    pool.register(0, tokens, pages, num_tokens=10)
    match = pool.match(0, [*range(10), 50], max_tokens=10)
    assert (match.pages, match.num_tokens, match.copy_from) == (tuple(pages[:2]), 10, pages[2])
    match = pool.match(0, [0, 1, 2, 3, 4, 99], max_tokens=5)
    assert (match.pages, match.num_tokens, match.copy_from) == (tuple(pages[:1]), 5, pages[1])
    match = pool.match(0, tokens, max_tokens=7)
    assert (match.pages, match.num_tokens, match.copy_from) == (tuple(pages[:1]), 7, pages[1])
    assert pool.match(1, tokens, max_tokens=9).num_tokens == 0


def test_a_page_computed_twice_is_kept_once() -> None:
    """Registering a full page that is known already swaps it for the known one and frees the other."""
    pool = PagePool(6, page_tokens=4)
    first, second = pool.allocate(2), pool.allocate(2)
    assert first is not None and second is not None
    pool.register(0, range(8), first, num_tokens=8)
    pool.register(0, range(8), second, num_tokens=8)
    assert second == first and pool._refs[first[0]] == 2
    assert pool.num_available == 4
    check_pages(pool)


def test_freed_pages_stay_findable_until_they_are_needed_oldest_first() -> None:
    """Given back pages are found again; when pages are short, the least recently used go first."""
    pool = PagePool(4, page_tokens=4)
    for start in (0, 100):
        pages = pool.allocate(2)
        assert pages is not None
        pool.register(0, range(start, start + 8), pages, num_tokens=8)
        pool.release(pages)
    pool.release(pool.acquire(pool.match(0, range(8), max_tokens=8)))
    assert pool.allocate(2) is not None
    assert pool.match(0, range(100, 108), max_tokens=8).num_tokens == 0
    assert pool.match(0, range(8), max_tokens=8).num_tokens == 8
    check_pages(pool)


def test_too_many_pages_at_once_change_nothing() -> None:
    """An allocation that cannot be met takes no page."""
    pool = PagePool(3, page_tokens=4)
    assert pool.allocate(4) is None
    assert pool.num_available == 3


def test_older_versions_are_forgotten_and_held_pages_stay_with_their_holder() -> None:
    """Dropping versions empties the index; what nobody holds is free at once, the rest when it is given back."""
    pool = PagePool(4, page_tokens=4)
    held, idle = pool.allocate(1), pool.allocate(1)
    assert held is not None and idle is not None
    pool.register(0, range(4), held, num_tokens=4)
    pool.register(0, range(50, 54), idle, num_tokens=4)
    pool.release(idle)
    pool.drop_versions_before(1)
    assert pool.match(0, range(4), max_tokens=4).num_tokens == 0
    check_pages(pool)
    pool.release(held)
    assert pool.num_available == 4
    check_pages(pool)


@dataclass
class Holder:
    """A sequence as the pool sees it, and what truly lies in its pages."""

    tokens: list[int]
    pages: list[int] = field(default_factory=list)


class World:
    """Drives a pool as a scheduler does, and keeps the content of every page beside it."""

    def __init__(self, num_pages: int, page_tokens: int, rng: random.Random) -> None:
        self.pool = PagePool(num_pages, page_tokens=page_tokens)
        self.content: list[list[int | None]] = [[None] * page_tokens for _ in range(num_pages)]
        self.holders: list[Holder] = []
        self.rng = rng
        self.version = 0

    def start(self) -> None:
        """A prompt of a tiny alphabet, often the beginning of one that is known."""
        tokens = [self.rng.randrange(2) for _ in range(self.rng.randint(1, 14))]
        if self.holders and self.rng.random() < 0.5:
            tokens = self.rng.choice(self.holders).tokens[: self.rng.randint(1, 14)] + tokens[:3]
        match = self.pool.match(self.version, tokens, max_tokens=len(tokens) - 1)
        assert match.num_tokens < len(tokens)
        pages = self.pool.acquire(match)
        fresh = self.pool.allocate(self.pool.pages_for(len(tokens)) - len(pages))
        if fresh is None:
            self.pool.release(pages)
            return
        if match.copy_from is not None:
            self.content[fresh[0]] = list(self.content[match.copy_from])
        holder = Holder(tokens, pages + fresh)
        assert self.read(holder)[: match.num_tokens] == tokens[: match.num_tokens], "what was found is not there"
        self.write(holder, match.num_tokens)
        self.holders.append(holder)

    def grow(self, holder: Holder) -> None:
        missing = self.pool.pages_for(len(holder.tokens) + 1) - len(holder.pages)
        fresh = self.pool.allocate(missing)
        if fresh is not None:
            holder.tokens.append(self.rng.randrange(2))
            holder.pages += fresh
            self.write(holder, len(holder.tokens) - 1)

    def register(self, holder: Holder) -> None:
        self.pool.register(self.version, holder.tokens, holder.pages, num_tokens=len(holder.tokens))

    def finish(self, holder: Holder) -> None:
        self.holders.remove(holder)
        self.register(holder)
        self.pool.release(holder.pages)

    def publish(self) -> None:
        """Everything ends, and the index of the old version goes."""
        for holder in tuple(self.holders):
            self.finish(holder)
        self.version += 1
        self.pool.drop_versions_before(self.version)

    def write(self, holder: Holder, start: int) -> None:
        for at in range(start, len(holder.tokens)):
            page, place = holder.pages[at // self.pool.page_tokens], at % self.pool.page_tokens
            assert self.pool._refs[page] == 1, "a shared page is written to"
            self.content[page][place] = holder.tokens[at]

    def read(self, holder: Holder) -> list[int | None]:
        return [token for page in holder.pages for token in self.content[page]][: len(holder.tokens)]


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32), num_pages=st.integers(4, 16), page_tokens=st.integers(1, 4))
def test_no_sequence_ever_loses_or_mixes_its_tokens(seed: int, num_pages: int, page_tokens: int) -> None:
    """Under any mix of starts, growth, endings and publishes every table reads its own tokens, and no page is lost."""
    world = World(num_pages, page_tokens, random.Random(seed))
    for _ in range(60):
        action = world.rng.choices(("start", "grow", "register", "finish", "publish"), (4, 6, 3, 3, 0.3))[0]
        if action in ("start", "publish"):
            getattr(world, action)()
        elif world.holders:
            getattr(world, action)(world.rng.choice(world.holders))
        check_pages(world.pool)
        assert all(world.read(holder) == holder.tokens for holder in world.holders)
    world.publish()
    assert world.pool.num_available == num_pages
