"""What a step computes, decided without a model."""

from __future__ import annotations

import random
from collections.abc import Sequence as TokenSequence

from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.engines.local.pages import PagePool
from ludus.engines.local.scheduler import Scheduler, StepPlan
from ludus.engines.sequence import SampledToken, Sequence
from ludus.types import Call, Sampling
from tests.engines.local.conftest import check_pages


def make_sequence(arrival: int, prompt_ids: TokenSequence[int], *, num_new: int = 4) -> Sequence:
    call = Call(f"call-{arrival}", "s", tuple(prompt_ids), Sampling())
    return Sequence(call, arrival, arrival, len(prompt_ids) + num_new, frozenset(), None, list(prompt_ids))


def make_scheduler(num_pages: int = 16, *, max_batch_tokens: int = 32, max_running: int = 8) -> Scheduler:
    pool = PagePool(num_pages, page_tokens=4)
    return Scheduler(pool, max_batch_tokens=max_batch_tokens, max_running=max_running)


def execute_command(scheduler: Scheduler, plan: StepPlan) -> list[Sequence]:
    """Pretends that the step ran and drew a token per sample; the sequences that ended."""
    scheduler.commit(plan)
    ended = [item.sequence for item in plan.scheduled if item.samples and item.sequence.append(SampledToken(7, 0.0), 0)]
    for sequence in ended:
        scheduler.remove(sequence)
    return ended


def work_of(plan: StepPlan) -> dict[str, tuple[int, int, bool]]:
    return {item.sequence.call.id: (item.start, item.num_tokens, item.samples) for item in plan.scheduled}


def test_a_long_prompt_is_computed_in_chunks_beside_those_that_decode() -> None:
    """Decoding sequences go first; a prompt gets the rest of the step, and samples only with its last chunk."""
    scheduler = make_scheduler(max_batch_tokens=8)
    scheduler.add(make_sequence(0, range(5)))
    assert work_of(scheduler.plan_step(0)) == {"call-0": (0, 5, True)}
    scheduler = make_scheduler(max_batch_tokens=8)
    scheduler.add(make_sequence(0, range(5)))
    scheduler.add(make_sequence(1, range(100, 112)))
    plan = scheduler.plan_step(0)
    assert work_of(plan) == {"call-0": (0, 5, True), "call-1": (0, 3, False)}
    execute_command(scheduler, plan)
    plan = scheduler.plan_step(0)
    assert work_of(plan) == {"call-0": (5, 1, True), "call-1": (3, 7, False)}
    execute_command(scheduler, plan)
    assert work_of(scheduler.plan_step(0)) == {"call-0": (6, 1, True), "call-1": (10, 2, True)}


def test_a_sibling_waits_a_step_for_the_prefix_that_is_being_computed() -> None:
    """Of two equal prompts one is computed; the other comes a step later and computes its last token alone."""
    scheduler = make_scheduler()
    for arrival in range(2):
        scheduler.add(make_sequence(arrival, range(10)))
    scheduler.add(make_sequence(2, range(50, 55)))
    plan = scheduler.plan_step(0)
    assert work_of(plan) == {"call-0": (0, 10, True), "call-2": (0, 5, True)}
    execute_command(scheduler, plan)
    plan = scheduler.plan_step(0)
    assert work_of(plan)["call-1"] == (9, 1, True)
    assert len(plan.copies) == 1


def test_the_youngest_gives_way_and_comes_back() -> None:
    """When pages run out the youngest is computed again later; both finish with all their tokens."""
    scheduler = make_scheduler(num_pages=4)
    scheduler.add(make_sequence(0, range(6), num_new=9))
    scheduler.add(make_sequence(1, range(50, 54), num_new=9))
    ended: list[Sequence] = []
    while scheduler.running or scheduler.waiting:
        plan = scheduler.plan_step(0)
        assert plan.scheduled
        ended += execute_command(scheduler, plan)
    assert [sequence.arrival for sequence in ended] == [0, 1]
    assert [len(sequence.logprobs) for sequence in ended] == [9, 9]
    assert scheduler.num_preemptions >= 1


def test_no_more_run_than_allowed() -> None:
    """`max_running` bounds the sequences of a step; the others wait in the order of their arrival."""
    scheduler = make_scheduler(max_running=2)
    for arrival in range(3):
        scheduler.add(make_sequence(arrival, [arrival] * 3))
    assert set(work_of(scheduler.plan_step(0))) == {"call-0", "call-1"}
    assert [sequence.arrival for sequence in scheduler.waiting] == [2]


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_everything_that_fits_alone_finishes(seed: int) -> None:
    """Whatever arrives when, every sequence ends with all its tokens, each step does something, no page is lost."""
    rng = random.Random(seed)
    num_pages = rng.randint(4, 12)
    scheduler = make_scheduler(num_pages, max_batch_tokens=rng.randint(1, 12), max_running=rng.randint(1, 5))
    sequences = []
    for arrival in range(rng.randint(1, 10)):
        length = rng.randint(1, num_pages * 4 - 1)
        prompt = [rng.randrange(2) for _ in range(length)]
        sequences.append(make_sequence(arrival, prompt, num_new=rng.randint(1, num_pages * 4 - length)))
    pending = list(sequences)
    num_steps = 0
    while pending or scheduler.running or scheduler.waiting:
        if pending and rng.random() < 0.5:
            scheduler.add(pending.pop(0))
        plan = scheduler.plan_step(0)
        assert plan.scheduled or not (scheduler.running or scheduler.waiting), "a step does nothing while calls wait"
        assert not any(len(item.sequence.pages) * 4 < item.start + item.num_tokens for item in plan.scheduled)
        execute_command(scheduler, plan)
        check_pages(scheduler.pool)
        num_steps += 1
        assert num_steps < 20_000, "the schedule goes round in circles"
    assert all(len(sequence.token_ids) == sequence.max_tokens for sequence in sequences)
    assert scheduler.pool.num_available == num_pages
