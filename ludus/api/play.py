"""`play`: runs an agent on rows without training, and returns its episodes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from ludus.api.agent import choose_agent
from ludus.api.cards.start import planned
from ludus.api.local import LocalModel, open_local
from ludus.api.rows import load_rows
from ludus.config import Config
from ludus.episodes.archive import Archive, RunArchive
from ludus.episodes.recall import Recall
from ludus.processes.blocking import run_blocking
from ludus.processes.gather import gather
from ludus.rollout.mixture import Row, derive_seed
from ludus.rollout.runner import EpisodeRunner, Players
from ludus.rollout.settings import GenerationSettings
from ludus.rollout.tasks import EpisodeTask
from ludus.runs.store import RunStore
from ludus.runs.trackers.select import check_trackers, open_trackers
from ludus.types import Episode

ResultT = TypeVar("ResultT")


@asynccontextmanager
async def open_runner(
    local: LocalModel,
    config: Config,
    players: Players,
    archive: Archive | None,
    evaluation: GenerationSettings,
    recall: Callable[[str], Recall | None] = lambda _: None,
) -> AsyncIterator[EpisodeRunner]:
    """A runner that plays episodes of these agents until the block ends. archive: None: episodes are only returned.

    evaluation: how evaluations sample.  recall: the answers that were sampled earlier for an episode, by its id.
    """
    with local.runtime(config) as runtime:
        await local.processes.workers(players.agents)
        generation = {"training": config.gconfig, "evaluation": evaluation}
        async with EpisodeRunner(
            players, runtime, config.rollout, **generation, archive=archive, recall=recall
        ) as runner:
            yield runner


async def outside_run(
    config: Config,
    players: Players,
    evaluation: GenerationSettings,
    work: Callable[[EpisodeRunner], Coroutine[Any, Any, ResultT]],
) -> ResultT:
    """What `work` returns, given a runner that plays these agents as evaluations are played. Episodes go to the
    configured trackers, and are kept in no run folder."""
    check_trackers(config.trackers)
    async with AsyncExitStack() as stack:
        sampling = planned(config, trains=False)
        local = await stack.enter_async_context(open_local(sampling, is_run=False))
        archive = None
        if config.trackers.to:  # trackers read episodes from a run folder
            root = stack.enter_context(TemporaryDirectory(prefix="ludus-play-"))
            store = stack.enter_context(RunStore.create(root, config.name, config.to_yaml()))
            stack.enter_context(open_trackers(config.trackers, config.name, store.folder))
            archive = RunArchive(store)
        runner = await stack.enter_async_context(open_runner(local, config, players, archive, evaluation))
        return await local.processes.unless_lost(work(runner))


def play(
    workflow: object,
    dataset: object,
    *,
    config: Config,
    workflow_kwargs: Mapping[str, Any] | None = None,
    on_episode: Callable[[Episode], None] = lambda _: None,
) -> tuple[Episode, ...]:
    """Play every row `gconfig.n_samples` times with the configured model; the episodes, ordered by row and sample.

    workflow, dataset: in every form that `Trainer` takes. An error in an agent is its episode's outcome; it is not
    raised.
    on_episode: called with each episode as it ends.
    """
    rows = load_rows(dataset)
    agent = choose_agent(config, workflow, workflow_kwargs, rows=rows)

    async def play_all(runner: EpisodeRunner) -> tuple[Episode, ...]:
        async def play_one(task: EpisodeTask) -> Episode:
            episode = await runner.run(task)
            on_episode(episode)
            return episode

        return tuple(await gather(play_one, tasks_of(config, rows), at_once=config.rollout.max_concurrent_rollouts))

    return run_blocking(outside_run(config, Players({"": agent}), config.gconfig, play_all))


def tasks_of(config: Config, rows: Sequence[Row]) -> list[EpisodeTask]:
    """The tasks of every row, `gconfig.n_samples` for each, ordered by row and sample."""
    # As evaluations: the agent's own sampling settings apply; none is pinned for training.
    return [
        EpisodeTask(
            episode_id=f"row{row_idx:05d}-m{sample_idx:02d}",
            group_id=f"row{row_idx:05d}",
            task_id=f"row{row_idx}",
            data=rows[row_idx],
            seed=derive_seed(config.seed, "rollout", row_idx, sample_idx),
            step=None,
            is_eval=True,
        )
        for row_idx in range(len(rows))
        for sample_idx in range(config.gconfig.n_samples)
    ]
