"""Episodes that ended badly, by what went wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ludus.runs.failures import Failures, failure_lines
from ludus.runs.store import RunStore
from ludus.types import Episode, Outcome

TRACE = 'File "agent.py", line {0}, in run\n    game.move({0})\nValueError: move {0} of game 0x7f{0:08x} is not legal'


def test_what_differs_in_numbers_alone_is_one(make_episode: Callable[..., Episode]) -> None:
    """The most frequent comes first, with the trace of its first episode; what went well or met a limit is none."""
    outcomes = [
        Outcome("timeout", "the agent took longer than rollout.episode_timeout_s=6.0"),
        *(Outcome("failed", TRACE.format(number)) for number in (3, 4, 15)),
        Outcome("ok"),
        Outcome("truncated", "the agent met a limit (turn_limit) and ended"),
        Outcome("failed", "KeyError: 'a'"),
        Outcome("failed", "KeyError: 'b'"),
    ]
    made = [replace(make_episode(number), outcome=outcome) for number, outcome in enumerate(outcomes)]
    failures = Failures()
    for episode in made:
        failures.add(episode)
    found = failures.groups()
    assert [(each.count, each.outcome, each.first) for each in found] == [
        (3, "failed", made[1].id),
        (1, "timeout", made[0].id),
        (1, "failed", made[6].id),
        (1, "failed", made[7].id),
    ]
    assert found[0].trace == TRACE.format(3) and found[0].reason.startswith("ValueError: move 3 of game")
    lines = failure_lines(found, num_episodes=8)
    assert lines[0] == "6 of 8 episodes ended badly:" and lines[-1] == "  1 x failed: KeyError: 'b'"
    assert failure_lines(()) == []
    lines = failure_lines(found, most=1)
    assert lines[0] == "6 episodes ended badly:" and lines[2:] == ["  3 x something else, of 3 kinds"]


def test_a_store_counts_on(tmp_path: Path, make_episode: Callable[..., Episode]) -> None:
    """What is added later is counted beside what was, by whoever reads."""
    with RunStore.create(tmp_path, "run", "") as store:
        assert store.failures() == ()
        for number in range(3):
            store.add_episode(replace(make_episode(number), outcome=Outcome("failed", f"KeyError: {number}")))
            assert [each.count for each in store.failures()] == [number + 1]
    with RunStore.open(tmp_path / "run") as store:
        assert [(each.count, each.reason) for each in store.failures()] == [(3, "KeyError: 0")]
