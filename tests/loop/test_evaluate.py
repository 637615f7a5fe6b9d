"""Evaluation: every row in order, means that do not flatter, seeds that do not move."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from ludus.errors import BackendError, UserError
from ludus.loop.evaluate import EvalPlan, eval_metrics, evaluate
from ludus.rollout.mixture import Source
from ludus.rollout.tasks import EpisodeTask
from ludus.types import Episode, Outcome

MakeEpisode = Callable[..., Episode]
PLAN = EvalPlan(sources=[Source([{"n": 0}, {"n": 1}])], n_samples=2, seed=3, max_concurrent=3)


def test_every_row_is_played_with_seeds_that_do_not_depend_on_the_step(make_episode: MakeEpisode) -> None:
    """Two evaluations differ by the weights alone: same rows, same seeds, other ids."""
    tasks: list[EpisodeTask] = []

    async def play(task: EpisodeTask) -> Episode:
        tasks.append(task)
        return make_episode(task.episode_id, {1: 1.0})

    first = asyncio.run(evaluate(play, PLAN, step=0))
    asyncio.run(evaluate(play, PLAN, step=5))
    assert [task.data["n"] for task in tasks[:4]] == [0, 0, 1, 1]
    assert [task.seed for task in tasks[:4]] == [task.seed for task in tasks[4:]]
    assert len({task.episode_id for task in tasks}) == 8
    assert first.ledger.masked == {"evaluation": 24}


def test_a_failed_episode_counts_as_no_success(make_episode: MakeEpisode) -> None:
    """Success is over all episodes; reward over those that have one."""
    won = replace(make_episode("a", {1: 2.0}), metrics={"success": 1.0})
    failed = make_episode("b", {}, outcome=Outcome("failed", "boom"))
    metrics = eval_metrics([won, failed])
    assert (metrics["eval/success"], metrics["eval/reward"], metrics["eval/failed_episodes"]) == (0.5, 2.0, 1.0)


def test_success_is_absent_when_no_agent_reports_it(make_episode: MakeEpisode) -> None:
    """A success that nobody measured is not zero."""
    assert "eval/success" not in eval_metrics([make_episode("a", {1: 2.0})])


def test_an_evaluation_in_which_everything_fails_is_an_error(make_episode: MakeEpisode) -> None:
    """The first failure's reason is in the error."""

    async def play(task: EpisodeTask) -> Episode:
        return make_episode(task.episode_id, {}, outcome=Outcome("failed", "KeyError: 'answer'"))

    with pytest.raises(UserError, match="all 4 episodes of the evaluation failed; the first: KeyError"):
        asyncio.run(evaluate(play, PLAN, step=0))


def test_an_error_of_play_rises_as_it_is(make_episode: MakeEpisode) -> None:
    """The first error rises, not a group of them; the episodes that ended are told all the same."""
    played: list[Episode] = []

    async def play(task: EpisodeTask) -> Episode:
        if task.data["n"] == 1:
            raise BackendError("the engine is gone")
        return make_episode(task.episode_id, {1: 1.0})

    with pytest.raises(BackendError, match="the engine is gone"):
        asyncio.run(evaluate(play, PLAN, step=0, on_episode=played.append))
    assert len(played) == 2


def test_each_source_has_means_of_its_own(make_episode: MakeEpisode) -> None:
    """Two rows of one source and one of another: means of each by its name, and of all three."""
    success = {"sums": (1.0, 0.0), "words": (1.0,)}
    sources = [Source([{"n": number} for number in range(len(each))], name) for name, each in success.items()]
    tasks: list[EpisodeTask] = []

    async def play(task: EpisodeTask) -> Episode:
        tasks.append(task)
        return replace(
            make_episode(task.episode_id, {1: 1.0}), metrics={"success": success[task.source][task.data["n"]]}
        )

    metrics = asyncio.run(evaluate(play, EvalPlan(sources, 1, 3, 3), step=0)).metrics
    assert metrics["eval/success"] == pytest.approx(2 / 3)
    assert (metrics["eval/success/sums"], metrics["eval/success/words"]) == (0.5, 1.0)
    assert (metrics["eval/episodes/sums"], metrics["eval/episodes"]) == (2.0, 3.0)
    assert [task.task_id for task in tasks] == ["eval-sums-row0", "eval-sums-row1", "eval-words-row0"]
    assert len({task.seed for task in tasks}) == len({task.episode_id for task in tasks}) == 3
