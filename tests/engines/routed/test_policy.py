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


def num_known(policy: Routing, prompt_ids: Sequence[int], replica: int) -> int:
    """Tokens at the start of a prompt that `replica` has seen since the weights are what they are."""
    return policy._num_known(replica, block_digests(prompt_ids)) * BLOCK_TOKENS


def routing(num_replicas: int = 3, *, spill_tokens: int | None = None) -> Routing:
    made = Routing(context_length=CONTEXT, spill_tokens=spill_tokens)
    for replica in range(num_replicas):
        made.add(replica)
    return made


def place(policy: Routing, asked: Call, among: tuple[int, ...] | None = None) -> int:
    replica = policy.choose(asked, policy.replicas if among is None else among)
    policy.enter(asked, replica)
    return replica


# ---- what the policy says


def test_strangers_go_where_least_is_outstanding() -> None:
    """Calls that share nothing spread by tokens, not by number: one long call weighs as much as several short ones."""
    policy = routing(2)
    long = call("long", session="a", prompt_ids=tuple(range(1000, 1200)), most=50)
    assert place(policy, long) == 0
    short = [call(f"{n}", session=f"b{n}", prompt_ids=(n, n + 1), most=8) for n in range(5)]
    assert [place(policy, one) for one in short] == [1] * 5
    assert policy.load(0).num_tokens == 250 and policy.load(1).num_tokens == 5 * 10


def test_a_session_stays_where_it_was() -> None:
    """Every call of a session goes where the one before went, however busy that replica is."""
    policy = routing(2)
    assert place(policy, call("1", session="a")) == 0
    policy.leave("1", 0)
    for other in range(3):
        policy.enter(call(f"busy{other}", session=f"busy{other}"), 0)
    assert place(policy, call("2", session="a", prompt_ids=(*PROMPT, 7, 8, 9))) == 0


def test_siblings_go_together() -> None:
    """All sessions of a group go to one replica, those of another group to another."""
    policy = routing(2)
    first = [place(policy, call(f"a{n}", session=f"a{n}", group="ga")) for n in range(8)]
    second = [place(policy, call(f"b{n}", session=f"b{n}", group="gb", prompt_ids=(1, 2))) for n in range(8)]
    assert set(first) == {0} and set(second) == {1}


def test_a_known_prefix_is_worth_its_tokens() -> None:
    """A stranger goes to the replica that knows its prefix, unless more is outstanding there than the prefix saves."""
    policy = routing(2)
    policy.enter(call("1", session="a"), 1)
    policy.leave("1", 1, (70, 71))
    assert place(policy, call("2", session="b", most=32)) == 1
    assert place(policy, call("3", session="c", most=32)) == 0, "96 tokens outstanding, 64 saved"


def test_answers_are_known_too() -> None:
    """What a replica has sampled is a prefix that it knows."""
    policy = routing(2)
    policy.enter(call("1", session="a", prompt_ids=PROMPT[:40]), 1)
    policy.leave("1", 1, PROMPT[40:])
    assert num_known(policy, (*PROMPT, 5, 6), 1) == 64
    assert num_known(policy, (*PROMPT[:-1], 5, 6), 1) == 64 - BLOCK_TOKENS
    assert num_known(policy, PROMPT, 0) == 0


def test_new_weights_make_prefixes_worthless() -> None:
    """After a publish nothing is known; homes stay, because siblings still share what they compute from now on."""
    policy = routing(2)
    policy.enter(call("1", session="a", group="g"), 1)
    policy.leave("1", 1)
    policy.forget_prefixes(1)
    assert num_known(policy, PROMPT, 1) == 0
    assert place(policy, call("2", session="b")) == 0
    assert place(policy, call("3", session="c", group="g")) == 1


def test_a_home_far_behind_is_passed_over() -> None:
    """With more than `spill_tokens` above the least busy replica, a home gets no more calls; the next one stays new."""
    policy = routing(2, spill_tokens=100)
    went = [place(policy, call(f"{n}", session=f"{n}", group="g")) for n in range(4)]
    assert went == [0, 0, 1, 1], "72 tokens each: 144 are too many above 0"


def test_a_replica_that_may_not_serve_is_passed_over() -> None:
    """A home outside of those that may serve gives way to another, which is home from then on."""
    policy = routing(2)
    assert place(policy, call("1", session="a")) == 0
    assert place(policy, call("2", session="a"), among=(1,)) == 1
    assert place(policy, call("3", session="a")) == 1


def test_a_removed_replica_leaves_nothing_behind() -> None:
    """Its calls are named, its homes are forgotten; leaving it later changes nothing."""
    policy = routing(2)
    policy.enter(call("1", session="a", group="g"), 0)
    assert policy.remove(0) == ("1",)
    policy.leave("1", 0)
    assert place(policy, call("2", session="a", group="g")) == 1
    with pytest.raises(UserError, match="there already"):
        policy.add(1)


def test_a_call_enters_once() -> None:
    """Two calls with one id at one replica are an error that says so."""
    policy = routing(1)
    policy.enter(call("1"), 0)
    with pytest.raises(UserError, match="running already"):
        policy.enter(call("1"), 0)


# ---- properties


@dataclass
class _Model:
    """What the policy should remember, kept in the plainest way."""

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
def test_whatever_happens_the_sums_balance(events: list[tuple[str, int, int, int]]) -> None:
    """Outstanding tokens are those of the calls that run; a session whose home is there goes home; nobody goes
    where there is no replica; and when all calls have ended nothing is outstanding."""
    policy, model = routing(3, spill_tokens=10**9), _Model()
    for number, (kind, first, second, size) in enumerate(events):
        if kind == "place":
            asked = call(f"c{number}", session=f"s{first}", group=f"g{second}", prompt_ids=tuple(range(size)))
            replica = place(policy, asked)
            assert model.sessions.get(f"s{first}", replica) == replica
            model.running[asked.id], model.sessions[f"s{first}"] = (replica, size + 8), replica
        elif kind == "leave" and model.running:
            call_id = sorted(model.running)[first % len(model.running)]
            policy.leave(call_id, model.running.pop(call_id)[0], (1, 2, 3))
        elif kind == "lose" and first in policy.replicas and len(policy.replicas) > 1:
            lost = set(policy.remove(first))
            assert lost == {call_id for call_id, (at, _) in model.running.items() if at == first}
            model.running = {key: value for key, value in model.running.items() if key not in lost}
            model.sessions = {key: at for key, at in model.sessions.items() if at != first}
        elif kind == "publish":
            for replica in policy.replicas:
                policy.forget_prefixes(replica)
        assert {replica: policy.load(replica).num_tokens for replica in policy.replicas} == {
            replica: model.tokens(replica) for replica in policy.replicas
        }
    for call_id, (replica, _) in model.running.items():
        policy.leave(call_id, replica)
    assert all(policy.load(replica).num_tokens == 0 for replica in policy.replicas)


@given(st.lists(st.integers(1, 200), min_size=1, max_size=40), st.integers(2, 4))
def test_strangers_are_balanced(sizes: list[int], num_replicas: int) -> None:
    """Calls that share nothing differ between two replicas by the longest of them at most."""
    policy = routing(num_replicas)
    for number, size in enumerate(sizes):
        prompt_ids = tuple(range(number * 1000, number * 1000 + size))
        place(policy, call(f"{number}", session=f"{number}", prompt_ids=prompt_ids))
    loads = [policy.load(replica).num_tokens for replica in policy.replicas]
    assert max(loads) - min(loads) <= max(sizes) + 8, loads


@given(st.lists(st.integers(0, 3), max_size=80), st.integers(0, 200))
def test_the_known_prefix_is_a_prefix(tokens: list[int], cut: int) -> None:
    """What a replica is said to know of a prompt is the beginning of something it was given, in whole blocks."""
    policy = routing(1)
    seen = tuple(tokens[:cut])
    policy.enter(call("1", prompt_ids=seen), 0)
    known = num_known(policy, tokens, 0)
    assert known % BLOCK_TOKENS == 0 and known == len(seen) // BLOCK_TOKENS * BLOCK_TOKENS


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 80), st.booleans()), max_size=40))
def test_a_stranger_goes_where_it_costs_least(events: list[tuple[int, int, int, bool]]) -> None:
    """Among all replicas, not only those that were looked at: none has fewer outstanding and unknown tokens."""
    policy = routing(4)
    for number, (replica, kind, size, ends) in enumerate(events):
        prompt_ids = tuple(range(kind * 1000, kind * 1000 + size))
        cost = {at: policy.load(at).num_tokens - num_known(policy, prompt_ids, at) for at in policy.replicas}
        asked = call(f"{number}", session=f"{number}", prompt_ids=prompt_ids)
        assert policy.choose(asked, policy.replicas) == min(cost, key=lambda at: (cost[at], at))
        policy.enter(asked, replica)
        if ends:
            policy.leave(asked.id, replica, (1, 2, 3))
        if number % 7 == 6:
            policy.forget_prefixes(replica)
