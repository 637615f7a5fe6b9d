"""Admission: how many groups may start, by counts alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ludus.rollout.staleness import RolloutCounts, num_admissible_groups


def admissible(
    version: int, accepted: int, running: int, *, ahead: int = 0, playing: int = 0, concurrent: int = 1000
) -> int:
    counts = RolloutCounts(version, accepted, running, playing)
    return num_admissible_groups(
        counts, batch_size=4, n_samples=8, max_concurrent=concurrent, max_head_offpolicyness=ahead
    )


def test_the_synchronous_schedule_starts_one_batch_at_a_time() -> None:
    """With no off-policyness a new batch starts only when the weights that it trains are there."""
    assert admissible(0, 0, 0) == 4
    assert admissible(0, 1, 3) == 0
    assert admissible(0, 4, 0) == 0
    assert admissible(1, 4, 0) == 4


def test_a_rejected_group_is_replaced() -> None:
    """A group that ran and was not accepted leaves room for another."""
    assert admissible(0, 2, 1) == 1


def test_each_version_of_off_policyness_admits_one_more_batch() -> None:
    """max_head_offpolicyness=2 lets rollouts run two batches ahead."""
    assert admissible(0, 0, 0, ahead=2) == 12
    assert admissible(5, 24, 4, ahead=2) == 4


def test_places_are_counted_in_episodes() -> None:
    """A group may start as soon as one of its members can."""
    assert admissible(0, 0, 2, playing=15, concurrent=16) == 1
    assert admissible(0, 0, 2, playing=16, concurrent=16) == 0


def test_nothing_starts_that_the_run_will_not_take() -> None:
    """Near the end of a run only the groups still needed are started."""
    counts = RolloutCounts(version=2, num_accepted_groups=9, num_running_groups=2, num_running_episodes=0)
    left = num_admissible_groups(
        counts, batch_size=4, n_samples=8, max_concurrent=99, max_head_offpolicyness=9, total_groups=12
    )
    assert left == 1


@given(st.integers(0, 9), st.integers(0, 3), st.integers(1, 4), st.integers(1, 5), st.integers(1, 40))
def test_accepted_groups_are_never_staler_than_allowed(
    steps: int, ahead: int, batch_size: int, n_samples: int, concurrent: int
) -> None:
    """However fast groups finish, a group is trained at most max_head_offpolicyness versions after it started."""
    waiting: list[int] = []
    accepted = 0
    for version in range(steps + 1):
        counts = RolloutCounts(version, accepted, 0, 0)
        num = num_admissible_groups(
            counts, batch_size=batch_size, n_samples=n_samples, max_concurrent=10**6, max_head_offpolicyness=ahead
        )
        waiting += [version] * num
        accepted += num
        batch, waiting = waiting[:batch_size], waiting[batch_size:]
        assert len(batch) == batch_size
        assert all(version - started <= ahead for started in batch)
