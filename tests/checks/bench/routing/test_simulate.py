"""Loads on paper: every call ends once, times are those of arithmetic, and what is asked is what was recorded."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from ludus.checks.bench.routing.load import Ask, SimulatedSession, SyntheticLoad, recorded_sessions
from ludus.checks.bench.routing.policies import POLICIES, LeastRequests, Policy, RoundRobin
from ludus.checks.bench.routing.replica import PaperCall, PaperReplica, ReplicaSpeed
from ludus.checks.bench.routing.simulate import simulate
from ludus.errors import UserError
from ludus.runs.store import RunStore
from ludus.types import Call, Episode, Sampling

SPEED = ReplicaSpeed(slots=2, step_s=0.1, step_s_per_call=0.1, prefill_tokens_per_s=100.0, cached_tokens=160)
LOAD = SyntheticLoad(num_groups=12, group_size=4, max_turns=3, answer_tokens=20, max_new_tokens=100)


def paper_call(name: str, prompt: range, num_tokens: int) -> PaperCall:
    return PaperCall(Call(name, name, tuple(prompt), Sampling()), range(10**6, 10**6 + num_tokens))


def session(name: str, *asks: Ask, group: str = "g") -> SimulatedSession:
    return SimulatedSession(name, group, lambda: iter(asks))


def test_a_call_alone_takes_its_prompt_and_its_steps() -> None:
    """100 prompt tokens at 100 a second, then 5 steps of 0.1 s."""
    replica = PaperReplica(SPEED)
    replica.enter(2.0, paper_call("a", range(100), 5))
    assert replica.next_end_at == pytest.approx(2.0 + 1.0 + 0.5)
    assert replica.end_next(3.5).call.id == "a"
    assert replica.next_end_at is None and replica.busy_s == pytest.approx(1.5)


def test_calls_together_share_the_steps() -> None:
    """A second call stops the first one for its prompt; then both are at every step, which takes 0.2 s."""
    replica = PaperReplica(SPEED)
    replica.enter(0.0, paper_call("a", range(10), 10))
    replica.enter(0.6, paper_call("b", range(1000, 1020), 3))
    # 0.1 s of prompt, 5 steps until 0.6; 0.2 s of prompt; b's 3 steps of 0.2; a's 2 last ones alone
    assert replica.next_end_at == pytest.approx(0.6 + 0.2 + 3 * 0.2)
    assert replica.end_next(1.4).call.id == "b"
    assert replica.next_end_at == pytest.approx(1.4 + 2 * 0.1)


def test_more_calls_than_slots_wait() -> None:
    """The third call begins when one of two has ended."""
    replica = PaperReplica(SPEED)
    for name in "abc":
        replica.enter(0.0, paper_call(name, range(0), 1))
    ends = []
    while (end_at := replica.next_end_at) is not None:
        ends.append((replica.end_next(end_at).call.id, round(end_at, 3)))
    assert ends == [("a", 0.2), ("b", 0.2), ("c", 0.3)]


def test_known_prompts_cost_nothing_until_they_are_forgotten() -> None:
    """The same prompt again computes what is no whole block; after many others it is computed anew."""
    replica = PaperReplica(SPEED)
    for prompt in (range(40), range(40), range(1000, 1100), range(40)):
        replica.enter(0.0, paper_call("a", prompt, 1))
        end_at = replica.next_end_at
        assert end_at is not None
        replica.end_next(end_at)
    assert replica.num_prompt_tokens == 220
    assert replica.num_cached_tokens == 32 + 32, "10 blocks are remembered: those of the prompt that came twice too"
    replica.enter(0.0, paper_call("a", range(5000, 5200), 1))
    end_at = replica.next_end_at
    assert end_at is not None
    replica.end_next(end_at)
    replica.enter(end_at, paper_call("a", range(40), 1))
    assert replica.num_cached_tokens == 64


@pytest.mark.parametrize("policy", POLICIES)
def test_every_call_is_asked_and_ends(policy: str) -> None:
    """Whatever the policy: as many calls as the load has, none faster than alone, sessions with their pauses; and
    the same figures again."""
    sessions = LOAD.sessions()
    done = simulate(sessions, POLICIES[policy], num_replicas=3, at_once=12)
    again = simulate(sessions, POLICIES[policy], num_replicas=3, at_once=12)
    asks = [ask for one in sessions for ask in one.asks()]
    assert done.num_calls == len(done.latencies_s) == len(asks) and len(done.sessions_s) == 48
    speed = ReplicaSpeed()
    assert min(done.latencies_s) >= min(len(ask.answer_ids) for ask in asks) * speed.step_s
    assert sum(done.sessions_s) >= sum(done.latencies_s) + sum(ask.pause_s for ask in asks) - 1e-6
    assert 0.0 <= done.idle_share < 1.0 and 0.0 <= done.cached_share < 1.0
    assert (again.latencies_s, again.idle_share) == (done.latencies_s, done.idle_share)


def test_a_load_is_what_its_seed_says() -> None:
    """Sessions of a group share their prompt, all share the instructions, and each goes on after its own answer."""
    one, other, stranger = (list(LOAD.sessions()[idx].asks()) for idx in (0, 1, 4))
    assert one[0].prompt_ids == other[0].prompt_ids != stranger[0].prompt_ids
    assert one[0].prompt_ids[:256] == stranger[0].prompt_ids[:256]
    for asks in (one, other, stranger):
        for before, after in itertools.pairwise(asks):
            assert after.prompt_ids[: len(before.prompt_ids)] == before.prompt_ids
            assert after.prompt_ids[len(before.prompt_ids) :][: len(before.answer_ids)] == tuple(before.answer_ids)
    assert next(SyntheticLoad(12, 4, seed=1).sessions()[0].asks()) != one[0]


def test_the_long_tail_is_as_long_as_promised() -> None:
    """The median answer, and one in forty at least eight times as long."""
    load = SyntheticLoad(num_groups=400, max_new_tokens=10**6)
    lengths = sorted(len(ask.answer_ids) for one in load.sessions() for ask in one.asks())
    assert lengths[len(lengths) // 2] == pytest.approx(load.answer_tokens, rel=0.05)
    assert sum(length >= 8 * load.answer_tokens for length in lengths) / len(lengths) == pytest.approx(1 / 40, rel=0.2)


def test_simple_policies_do_what_they_are_called() -> None:
    """One after the other; and where the fewest calls are."""
    asked = [Call(f"{n}", "s", (1,), Sampling()) for n in range(6)]
    policy: Policy = RoundRobin(3, 64)
    assert [policy.place(one) for one in asked] == [0, 1, 2, 0, 1, 2]
    policy = LeastRequests(3, 64)
    assert [policy.place(one) for one in asked[:4]] == [0, 1, 2, 0]
    policy.leave(asked[1], 1, ())
    assert policy.place(asked[4]) == 1


def test_sticky_sessions_find_their_prompts() -> None:
    """On several replicas the router's policy computes less of the prompts than the others, and calls end sooner."""
    figures = {name: simulate(LOAD.sessions(), policy, num_replicas=4, at_once=16) for name, policy in POLICIES.items()}
    ours = figures.pop("Ludus")
    assert all(ours.cached_share > other.cached_share + 0.1 for other in figures.values())


def test_a_recorded_run_is_asked_again(tmp_path: Path, make_episode: Callable[..., Episode]) -> None:
    """The prompts, answers and pauses of its training episodes, as often as asked, each time by other groups."""
    with RunStore.create(tmp_path, "run", "") as store:
        for member in range(2):
            store.add_episode(make_episode(f"g0-m{member}", {0: 1.0}), step=1)
    sessions = recorded_sessions(tmp_path / "run", times=2)
    assert Counter(one.group_id for one in sessions) == {"g0/0": 2, "g0/1": 2}
    first, second = sessions[0].asks()
    assert second.prompt_ids[: len(first.prompt_ids)] == first.prompt_ids
    assert second.prompt_ids[len(first.prompt_ids) :][: len(first.answer_ids)] == tuple(first.answer_ids)
    assert simulate(sessions, LeastRequests, num_replicas=2, at_once=4).num_calls == 8


def test_nothing_to_simulate_is_said(tmp_path: Path) -> None:
    """A load without sessions, and a run without episodes, are errors."""
    with pytest.raises(UserError, match="0 sessions"):
        simulate([], RoundRobin, num_replicas=1, at_once=1)
    RunStore.create(tmp_path, "run", "").close()
    with pytest.raises(UserError, match="no training episode"):
        recorded_sessions(tmp_path / "run")
    assert math.isfinite(simulate([session("a", Ask((1,), (2,), 0.0))], RoundRobin, num_replicas=1, at_once=1).seconds)
