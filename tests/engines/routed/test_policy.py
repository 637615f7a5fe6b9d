from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.engines.routed.policy import BLOCK_TOKENS, Routing, block_digests
from ludus.errors import UserError
from ludus.types import Call, Sampling

CONTEXT = 256
PROMPT = tuple(range(64))


def call(
    call_id: str, *, session: str = "s", group: str | None = None, prompt_ids: tuple[int, ...] = PROMPT, most: int = 8
) -> Call:
    return Call(call_id, session, prompt_ids, Sampling(max_new_tokens=most), group_id=group)


def num_known(books: Routing, prompt_ids: Sequence[int], replica: int) -> int:
    """Tokens at the start of a prompt that `replica` has seen since the weights are what they are."""
    return books._num_known(replica, block_digests(prompt_ids)) * BLOCK_TOKENS


def routing(num_replicas: int = 3, *, spill_tokens: int | None = None) -> Routing:
    made = Routing(context_length=CONTEXT, spill_tokens=spill_tokens)
    for replica in range(num_replicas):
        made.add(replica)
    return made


def place(books: Routing, asked: Call, among: tuple[int, ...] | None = None) -> int:
    replica = books.choose(asked, books.replicas if among is None else among)
    books.enter(asked, replica)
    return replica


# ---- what the policy says


def test_strangers_go_where_least_is_outstanding() -> None:
    """Calls that share nothing spread by tokens, not by number: one long call weighs as much as several short ones."""
    books = routing(2)
    long = call("long", session="a", prompt_ids=tuple(range(1000, 1200)), most=50)
    assert place(books, long) == 0
    short = [call(f"{n}", session=f"b{n}", prompt_ids=(n, n + 1), most=8) for n in range(5)]
    assert [place(books, one) for one in short] == [1] * 5
    assert books.load(0).num_tokens == 250 and books.load(1).num_tokens == 5 * 10


def test_a_session_stays_where_it_was() -> None:
    """Every call of a session goes where the one before went, however busy that replica is."""
    books = routing(2)
    assert place(books, call("1", session="a")) == 0
    books.leave("1", 0)
    for other in range(3):
        books.enter(call(f"busy{other}", session=f"busy{other}"), 0)
    assert place(books, call("2", session="a", prompt_ids=(*PROMPT, 7, 8, 9))) == 0


def test_siblings_go_together() -> None:
    """All sessions of a group go to one replica, those of another group to another."""
    books = routing(2)
    first = [place(books, call(f"a{n}", session=f"a{n}", group="ga")) for n in range(8)]
    second = [place(books, call(f"b{n}", session=f"b{n}", group="gb", prompt_ids=(1, 2))) for n in range(8)]
    assert set(first) == {0} and set(second) == {1}


def test_a_known_prefix_is_worth_its_tokens() -> None:
    """A stranger goes to the replica that knows its prefix, unless more is outstanding there than the prefix saves."""
    books = routing(2)
    books.enter(call("1", session="a"), 1)
    books.leave("1", 1, (70, 71))
    assert place(books, call("2", session="b", most=32)) == 1
    assert place(books, call("3", session="c", most=32)) == 0, "96 tokens outstanding, 64 saved"


def test_answers_are_known_too() -> None:
    """What a replica has sampled is a prefix that it knows."""
    books = routing(2)
    books.enter(call("1", session="a", prompt_ids=PROMPT[:40]), 1)
    books.leave("1", 1, PROMPT[40:])
    assert num_known(books, (*PROMPT, 5, 6), 1) == 64
    assert num_known(books, (*PROMPT[:-1], 5, 6), 1) == 64 - BLOCK_TOKENS
    assert num_known(books, PROMPT, 0) == 0


def test_new_weights_make_prefixes_worthless() -> None:
    """After a publish nothing is known; homes stay, because siblings still share what they compute from now on."""
    books = routing(2)
    books.enter(call("1", session="a", group="g"), 1)
    books.leave("1", 1)
    books.forget_prefixes(1)
    assert num_known(books, PROMPT, 1) == 0
    assert place(books, call("2", session="b")) == 0
    assert place(books, call("3", session="c", group="g")) == 1


def test_a_home_far_behind_is_passed_over() -> None:
    """With more than `spill_tokens` above the least busy replica, a home gets no more calls; the next one stays new."""
    books = routing(2, spill_tokens=100)
    went = [place(books, call(f"{n}", session=f"{n}", group="g")) for n in range(4)]
    assert went == [0, 0, 1, 1], "72 tokens each: 144 are too many above 0"


def test_a_replica_that_may_not_serve_is_passed_over() -> None:
    """A home outside of those that may serve gives way to another, which is home from then on."""
    books = routing(2)
    assert place(books, call("1", session="a")) == 0
    assert place(books, call("2", session="a"), among=(1,)) == 1
    assert place(books, call("3", session="a")) == 1


def test_a_removed_replica_leaves_nothing_behind() -> None:
    """Its calls are named, its homes are forgotten; leaving it later changes nothing."""
    books = routing(2)
    books.enter(call("1", session="a", group="g"), 0)
    assert books.remove(0) == ("1",)
    books.leave("1", 0)
    assert place(books, call("2", session="a", group="g")) == 1
    with pytest.raises(UserError, match="there already"):
        books.add(1)


def test_a_call_enters_once() -> None:
    """Two calls with one id at one replica are an error that says so."""
    books = routing(1)
    books.enter(call("1"), 0)
    with pytest.raises(UserError, match="running already"):
        books.enter(call("1"), 0)


# ---- properties


@dataclass
class _Model:
    """What the books should say, kept in the plainest way."""

    running: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Replica and tokens by call id."""
    sessions: dict[str, int] = field(default_factory=dict)

    def tokens(self, replica: int) -> int:
        return sum(tokens for at, tokens in self.running.values() if at == replica)


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("place"), st.integers(0, 4), st.integers(0, 2), st.integers(1, 60)),
        st.tuples(st.just("leave"), st.integers(0, 50), st.just(0), st.just(0)),
        st.tuples(st.just("lose"), st.integers(0, 2), st.just(0), st.just(0)),
        st.tuples(st.just("publish"), st.just(0), st.just(0), st.just(0)),
    ),
    max_size=60,
)


@given(EVENTS)
def test_whatever_happens_the_books_balance(events: list[tuple[str, int, int, int]]) -> None:
    """Outstanding tokens are those of the calls that run; a session whose home is there goes home; nobody goes
    where there is no replica; and when all calls have ended nothing is outstanding."""
    books, model = routing(3, spill_tokens=10**9), _Model()
    for number, (kind, first, second, size) in enumerate(events):
        if kind == "place":
            asked = call(f"c{number}", session=f"s{first}", group=f"g{second}", prompt_ids=tuple(range(size)))
            replica = place(books, asked)
            assert model.sessions.get(f"s{first}", replica) == replica
            model.running[asked.id], model.sessions[f"s{first}"] = (replica, size + 8), replica
        elif kind == "leave" and model.running:
            call_id = sorted(model.running)[first % len(model.running)]
            books.leave(call_id, model.running.pop(call_id)[0], (1, 2, 3))
        elif kind == "lose" and first in books.replicas and len(books.replicas) > 1:
            lost = set(books.remove(first))
            assert lost == {call_id for call_id, (at, _) in model.running.items() if at == first}
            model.running = {key: value for key, value in model.running.items() if key not in lost}
            model.sessions = {key: at for key, at in model.sessions.items() if at != first}
        elif kind == "publish":
            for replica in books.replicas:
                books.forget_prefixes(replica)
        assert {replica: books.load(replica).num_tokens for replica in books.replicas} == {
            replica: model.tokens(replica) for replica in books.replicas
        }
    for call_id, (replica, _) in model.running.items():
        books.leave(call_id, replica)
    assert all(books.load(replica).num_tokens == 0 for replica in books.replicas)


@given(st.lists(st.integers(1, 200), min_size=1, max_size=40), st.integers(2, 4))
def test_strangers_are_balanced(sizes: list[int], num_replicas: int) -> None:
    """Calls that share nothing differ between two replicas by the longest of them at most."""
    books = routing(num_replicas)
    for number, size in enumerate(sizes):
        prompt_ids = tuple(range(number * 1000, number * 1000 + size))
        place(books, call(f"{number}", session=f"{number}", prompt_ids=prompt_ids))
    loads = [books.load(replica).num_tokens for replica in books.replicas]
    assert max(loads) - min(loads) <= max(sizes) + 8, loads


@given(st.lists(st.integers(0, 3), max_size=80), st.integers(0, 200))
def test_the_known_prefix_is_a_prefix(tokens: list[int], cut: int) -> None:
    """What a replica is said to know of a prompt is the beginning of something it was given, in whole blocks."""
    books = routing(1)
    seen = tuple(tokens[:cut])
    books.enter(call("1", prompt_ids=seen), 0)
    known = num_known(books, tokens, 0)
    assert known % BLOCK_TOKENS == 0 and known == len(seen) // BLOCK_TOKENS * BLOCK_TOKENS


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 80), st.booleans()), max_size=40))
def test_a_stranger_goes_where_it_costs_least(events: list[tuple[int, int, int, bool]]) -> None:
    """Among all replicas, not only those that were looked at: none has fewer outstanding and unknown tokens."""
    books = routing(4)
    for number, (replica, kind, size, ends) in enumerate(events):
        prompt_ids = tuple(range(kind * 1000, kind * 1000 + size))
        cost = {at: books.load(at).num_tokens - num_known(books, prompt_ids, at) for at in books.replicas}
        asked = call(f"{number}", session=f"{number}", prompt_ids=prompt_ids)
        assert books.choose(asked, books.replicas) == min(cost, key=lambda at: (cost[at], at))
        books.enter(asked, replica)
        if ends:
            books.leave(asked.id, replica, (1, 2, 3))
        if number % 7 == 6:
            books.forget_prefixes(replica)
