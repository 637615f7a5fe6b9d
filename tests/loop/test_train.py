"""The loop, with written episodes and a learner that counts: order, limits, resume, interrupts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ludus.algorithms.settings import AlgorithmSettings
from ludus.engines.scripted import ScriptedEngine
from ludus.errors import BackendError, UserError
from ludus.loop.batch import BatchRules
from ludus.loop.checkpoint import Checkpoint, RunProgress, checkpoints, latest_checkpoint
from ludus.loop.evaluate import EvalPlan
from ludus.loop.interrupt import Interrupts
from ludus.loop.observer import Observer, RunSummary
from ludus.loop.settings import CheckpointSettings, EvalSettings
from ludus.loop.train import RunComponents, TrainPlan, train
from ludus.rollout.mixture import Source
from ludus.rollout.settings import CurriculumSettings, ReplaySettings, RolloutSettings
from ludus.rollout.tasks import EpisodeTask
from ludus.runs.store import RunStore
from ludus.text.tokenizer import Tokenizer
from ludus.types import Episode, Outcome

MakeEpisode = Callable[..., Episode]
ROWS = [{"n": number} for number in range(5)]


class Diary(Observer):
    """Remembers what the loop told, in order."""

    def __init__(self, after_step: Callable[[int], None] = lambda step: None) -> None:
        self.told: list[str] = []
        self.metrics: list[Any] = []
        self._after_step = after_step

    def on_phase(self, doing: str) -> None:
        self.told.append(doing)

    def on_start(self, total_steps: int | None, total_seconds: float | None) -> None:
        self.told.append(f"start {total_steps} {total_seconds}")

    def on_step(self, step: int, metrics: Any) -> None:
        self.told.append(f"step {step}")
        self.metrics.append(metrics)
        self._after_step(step)

    def on_eval(self, step: int, metrics: Any) -> None:
        self.told.append(f"eval {step}")

    def on_end(self, summary: RunSummary) -> None:
        self.told.append(f"end {summary.stopped_by}")


class ScriptedRun:
    """The parts of a run around a learner that counts."""

    def __init__(self, root: Path, tokenizer: Tokenizer, learner: Any, make_episode: MakeEpisode) -> None:
        self.store = RunStore.create(root, "run", "")
        self.learner = learner
        self.interrupts = Interrupts()
        self.played: list[str] = []
        self._tokenizer = tokenizer
        self._make_episode = make_episode

    async def play(self, task: EpisodeTask) -> Episode:
        self.played.append(task.episode_id)
        version = (task.step or 0) if task.is_eval else (task.step or 1) - 1
        episode = self._make_episode(task.episode_id, {1: task.seed / 2**63}, version=version)
        self.store.add_episode(episode, step=task.step)
        return episode

    def resume(self, **plan: Any) -> RunSummary:
        """Go on from the latest checkpoint with a learner that knows nothing else."""
        found = self.latest()
        self.learner = type(self.learner)()
        self.learner.load(found.trainer_folder)
        self.interrupts = Interrupts()
        return self.train(start=found.progress, **plan)

    def latest(self) -> Checkpoint:
        found = latest_checkpoint(self.store.checkpoints)
        assert found is not None
        return found

    @property
    def num_stored_tokens(self) -> int:
        """Sampled by all episodes in the run store."""
        return sum(row["num_sampled_tokens"] for row in self.store.episode_rows())

    def train(
        self,
        *,
        start: RunProgress | None = None,
        play: Any = None,
        diary: Diary | None = None,
        make_engine: type[ScriptedEngine] = ScriptedEngine,
        **plan: Any,
    ) -> RunSummary:
        values: dict[str, Any] = {
            "sources": [Source(ROWS)],
            "seed": 1,
            "shuffle": True,
            "batch_size": 2,
            "n_samples": 2,
            "rollout": RolloutSettings(max_head_offpolicyness=plan.pop("ahead", 0)),
            "evaluation": None,
            "eval_settings": EvalSettings(),
            "checkpoint": CheckpointSettings(),
            "total_steps": None,
            "total_seconds": None,
            **plan,
        }
        algorithm = values.pop("algorithm", AlgorithmSettings())
        rules = BatchRules(algorithm, 1.0, "individual", 64, values["rollout"].max_token_age)

        async def main() -> RunSummary:
            engine = make_engine([], self._tokenizer)
            if start is not None and start.step:
                await engine.publish(start.step, self.learner)
            components = RunComponents(
                engine=engine,
                learner=self.learner,
                play=play or self.play,
                store=self.store,
                observer=diary or Diary(),
                interrupts=self.interrupts,
                save_model=lambda folder: folder.mkdir(exist_ok=True),
            )
            return await train(components, TrainPlan(rules=rules, **values), start or RunProgress())

        return asyncio.run(main())


@pytest.fixture
def run(tmp_path: Path, tokenizer_folder: Path, learner: Any, make_episode: MakeEpisode) -> Iterator[ScriptedRun]:
    built = ScriptedRun(tmp_path, Tokenizer.load(tokenizer_folder), learner, make_episode)
    yield built
    built.store.close()


def test_a_run_ends_after_its_steps_and_accounts_for_everything(run: ScriptedRun) -> None:
    """Three steps, no group started that no step takes, a balanced ledger, a summary on disk."""
    diary = Diary()
    summary = run.train(total_steps=3, diary=diary)
    phases = "playing the first rows: 2 x 2 episodes", "saving the model"
    assert diary.told == ["start 3 None", phases[0], "step 1", "step 2", "step 3", phases[1], "end total_train_steps"]
    assert len(run.learner.batches) == 3 and len(run.played) == 12
    assert summary.ledger.sampled == 72 and summary.ledger.unbalanced == 0
    assert run.store.summary() is not None
    assert [step for step, _ in run.store.metrics()] == [1, 2, 3]


def test_evaluations_and_checkpoints_come_when_they_are_due(run: ScriptedRun) -> None:
    """Before, every two steps, after; and no evaluation twice for the same weights."""
    diary = Diary()
    run.train(
        total_steps=4,
        diary=diary,
        evaluation=EvalPlan([Source(ROWS[:1])], 1, 3, 4),
        eval_settings=EvalSettings(before=True, every_steps=2, after=True),
        checkpoint=CheckpointSettings(every_steps=1, keep=2),
    )
    assert diary.told.count("playing held-out rows: 1 x 1 episodes") == 3
    assert [entry for entry in diary.told if not entry.startswith(("start", "playing", "saving"))] == [
        *("eval 0", "step 1", "step 2", "eval 2", "step 3", "step 4", "eval 4", "end total_train_steps")
    ]
    names = sorted(path.name for path in run.store.checkpoints.iterdir())
    assert names == ["step-000003", "step-000004"]


@pytest.mark.parametrize(("every_seconds", "saved"), [(None, 0), (600.0, 0), (1e-9, 3)])
def test_checkpoints_come_by_time(run: ScriptedRun, every_seconds: float | None, saved: int) -> None:
    """A process that is killed has lost no more than so many seconds, and one step."""
    diary = Diary(lambda step: found.append(len(list(run.store.checkpoints.glob("step-*")))))
    found: list[int] = []
    run.train(total_steps=4, diary=diary, checkpoint=CheckpointSettings(every_seconds=every_seconds, keep=9))
    assert found[-1] == saved


@pytest.mark.parametrize("ahead", [0, 2])
def test_a_resumed_run_plays_every_group_that_was_not_trained_on(run: ScriptedRun, ahead: int) -> None:
    """Interrupted after step 2 and resumed, each group is trained on once, in whatever schedule."""
    run.train(total_steps=5, ahead=ahead, diary=Diary(lambda step: run.interrupts.request() if step == 2 else None))
    found = latest_checkpoint(run.store.checkpoints)
    assert found is not None and found.progress.step == 2
    assert run.store.summary() is None
    run.interrupts = Interrupts()
    summary = run.train(total_steps=5, ahead=ahead, start=found.progress)
    trained = {turn_id.split("-")[0] for turn_id, value in run.store.credit().items()}
    assert summary.steps == 5 and len(run.learner.batches) == 5
    stored = sum(episode.session.num_sampled_tokens for episode in run.store.episodes())
    assert summary.ledger.sampled == stored, "the account goes on where the interrupted run left it"
    assert trained == {f"g{ordinal:06d}" for ordinal in range(10)}


@pytest.mark.parametrize("sampling", [{}, {"dynamic_sampling": True}])
def test_a_curriculum_goes_on_as_if_nothing_had_happened(run: ScriptedRun, sampling: dict[str, bool]) -> None:
    """From the checkpoint of a step the groups are those of the run that was left alone, and so is what is skipped;
    that is the solved row, in every other epoch, also where its groups are in no batch."""

    async def play(task: EpisodeTask) -> Episode:
        success = float(task.data["n"] == 2 or task.episode_id.endswith("m00"))
        episode = await run.play(task)
        last = episode.session.turns[-1].id
        return replace(episode, metrics={"success": success}, rewards={last: success}, reward=success)

    def skipped() -> dict[int, tuple[float, float]]:
        rows = dict(run.store.metrics())
        return {step: (row["data/skipped_solved"], row["data/skipped_hopeless"]) for step, row in rows.items()}

    plan: dict[str, Any] = {"curriculum": CurriculumSettings(solved=1.0, hopeless=0.0), "play": play, "total_steps": 10}
    plan["algorithm"] = AlgorithmSettings(**sampling)
    run.train(**plan, checkpoint=CheckpointSettings(every_steps=1, keep=10))
    whole, counts = run.played[:], skipped()
    assert sum(solved for solved, _ in counts.values()) >= 2 and not any(hopeless for _, hopeless in counts.values())
    for found in checkpoints(run.store.checkpoints)[2:9:3]:
        run.played.clear()
        run.train(start=found.progress, **plan)
        assert run.played == whole[len(whole) - len(run.played) :]
        assert {step: counts[step] for step in counts if step > found.progress.step}.items() <= skipped().items()


@pytest.mark.parametrize("ahead", [0, 1])
def test_replayed_groups_take_places_of_a_batch(run: ScriptedRun, ahead: int) -> None:
    """From the second batch on one of two groups is of an earlier batch: so many fewer are played, and the ledger
    balances. What was begun ahead of the first step, when nothing was kept, is too old once; nothing is after that."""
    rollout = RolloutSettings(max_head_offpolicyness=ahead, replay=ReplaySettings(share=0.5))
    diary = Diary()
    summary = run.train(total_steps=6, rollout=rollout, diary=diary)
    assert [metrics.get("replay/groups", 0.0) for metrics in diary.metrics] == [0.0] + [1.0] * 5
    assert all(batch.num_trained == 24 for batch in run.learner.batches)
    # two places of the first batch and one of each other
    assert len({episode_id[:7] for episode_id in run.played}) == 7 + ahead
    assert summary.ledger.replayed == 5 * 12 and summary.ledger.trained == 7 * 12
    assert summary.ledger.sampled == run.num_stored_tokens and summary.ledger.unbalanced == 0
    assert summary.ledger.masked == ({"stale": 12} if ahead else {})


def test_a_resumed_run_replays_the_same_groups(run: ScriptedRun) -> None:
    """From the checkpoint of any step the batches are those of the run that was left alone."""
    plan: dict[str, Any] = {
        "rollout": RolloutSettings(replay=ReplaySettings(share=0.5, max_age=4, size=3)),
        "total_steps": 8,
    }
    run.train(**plan, checkpoint=CheckpointSettings(every_steps=1, keep=10))
    whole = run.learner.batches
    for found in checkpoints(run.store.checkpoints)[1:7:2]:
        run.learner = type(run.learner)()
        run.train(start=found.progress, **plan)
        assert run.learner.batches == whole[found.progress.step :]


@pytest.mark.parametrize(("rest", "ahead"), [("keep", 1), ("cancel", 0), ("cancel", 1)])
def test_over_sampling_accounts_for_what_no_step_took(run: ScriptedRun, rest: str, ahead: int) -> None:
    """With slow groups on top each token that was stored is in the ledger once; groups that were cancelled, or went on
    and came to be too old, leave every batch full."""

    async def play(task: EpisodeTask) -> Episode:
        if int(task.group_id[1:]) % 3 == 0:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.02)
        return await run.play(task)

    rollout = RolloutSettings(max_head_offpolicyness=ahead, oversample=0.5, oversample_rest=rest)
    summary = run.train(total_steps=4, rollout=rollout, play=play)
    assert summary.steps == 4
    assert len(run.learner.batches) == 4
    stored = sum(episode.session.num_sampled_tokens for episode in run.store.episodes())
    assert summary.ledger.sampled == stored and summary.ledger.unbalanced == 0
    assert summary.ledger.trained == 4 * 24 - sum(
        num for reason, num in summary.ledger.masked.items() if reason not in ("unused", "cancelled", "stale")
    )


def test_an_interrupt_while_waiting_for_rollouts_leaves_at_once(run: ScriptedRun) -> None:
    """Episodes that never end do not hold up Ctrl-C: the run is saved, and they are played again later."""

    async def hang(task: EpisodeTask) -> Episode:
        run.interrupts.request()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return await run.play(task)

    diary = Diary()
    summary = run.train(total_steps=1, play=hang, diary=diary)
    found = latest_checkpoint(run.store.checkpoints)
    assert summary.stopped_by == "interrupt" and summary.steps == 0 and summary.model is None
    assert found is not None and found.progress.unconsumed == (0, 1)


def test_the_clock_ends_a_run_before_the_step_that_would_be_too_long(run: ScriptedRun) -> None:
    """With a limit in seconds the run ends at or before it, after at least one step; evaluations take no time."""
    summary = run.train(total_seconds=0.3)
    assert summary.stopped_by == "total_train_seconds" and summary.steps >= 1


def test_rollouts_that_stop_by_themselves_leave_a_checkpoint(run: ScriptedRun) -> None:
    """What was learned before the agent's world broke is saved, and the error rises."""

    async def play(task: EpisodeTask) -> Episode:
        if task.group_id > "g000001":
            raise UserError("the world broke")
        return await run.play(task)

    with pytest.raises(UserError, match="the world broke"):
        run.train(total_steps=3, play=play)
    found = latest_checkpoint(run.store.checkpoints)
    assert found is not None and found.progress.step == 1


class FragileEngine(ScriptedEngine):
    """Is gone when version 3 is to be published."""

    error: Exception = BackendError("the server is gone")

    async def publish(self, version: int, weights: Any) -> None:
        if version == 3:
            raise self.error
        await super().publish(version, weights)


class FaultyEngine(FragileEngine):
    """Has a fault of its own there, which nobody foresaw."""

    error = RuntimeError("the server is gone")


@pytest.mark.parametrize("engine", [FragileEngine, FaultyEngine])
@pytest.mark.parametrize("every_steps", [None, 1])
def test_weights_that_were_trained_and_not_published_are_a_step(
    run: ScriptedRun, every_steps: int | None, engine: type[FragileEngine]
) -> None:
    """An engine that dies at the publish of version 3 leaves a checkpoint of step 3, and no token without account."""
    with pytest.raises(type(engine.error), match="the server is gone"):
        run.train(total_steps=4, checkpoint=CheckpointSettings(every_steps=every_steps), make_engine=engine)
    found = run.latest()
    assert found.progress.step == 3 and (found.trainer_folder / "count.txt").read_text() == "3"
    assert found.progress.unconsumed == () and found.progress.next_ordinal == 6
    assert found.progress.ledger.sampled == run.num_stored_tokens
    summary = run.resume(total_steps=4)
    assert summary.steps == 4 and len(run.learner.batches) == 4


class BrokenLearner:
    """Moves some weights of its third batch, then fails."""

    def __init__(self, learner: Any) -> None:
        self.learner = learner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.learner, name)

    def train_batch(self, batch: Any, algorithm: Any = None, **how: Any) -> Any:
        metrics = self.learner.train_batch(batch, algorithm, **how)
        if len(self.learner.batches) == 3:
            raise BackendError("a rank is gone")
        return metrics


@pytest.mark.parametrize(("every_steps", "saved"), [(None, None), (1, 2), (2, 2)])
def test_weights_between_two_versions_are_not_saved(
    run: ScriptedRun, learner: Any, every_steps: int | None, saved: int | None
) -> None:
    """A step that fails while it trains leaves the checkpoint before it, whose groups are trained on later."""
    run.learner = BrokenLearner(learner)
    with pytest.raises(BackendError, match="a rank is gone"):
        run.train(total_steps=4, checkpoint=CheckpointSettings(every_steps=every_steps))
    found = latest_checkpoint(run.store.checkpoints)
    assert (found and found.progress.step) == saved
    if found is not None:
        run.learner = learner
        summary = run.resume(total_steps=4)
        trained = {turn_id.split("-")[0] for turn_id in run.store.credit()}
        assert (found.trainer_folder / "count.txt").read_text() == "2"
        assert summary.steps == 4 and trained == {f"g{ordinal:06d}" for ordinal in range(8)}


def test_groups_of_a_batch_that_cannot_be_built_are_played_again(run: ScriptedRun, make_episode: MakeEpisode) -> None:
    """A reward that is no number ends the run; what was learned is saved, and the groups of the step are not lost."""

    async def play(task: EpisodeTask) -> Episode:
        reward = float("nan") if task.group_id == "g000003" else task.seed / 2**63
        episode = make_episode(task.episode_id, {1: reward}, version=(task.step or 1) - 1)
        run.store.add_episode(episode, step=task.step)
        return episode

    with pytest.raises(UserError, match="must be a finite number"):
        run.train(total_steps=3, play=play)
    found = run.latest()
    assert found.progress.step == 1 and found.progress.unconsumed == (2, 3)
    assert found.progress.ledger.sampled == run.num_stored_tokens
    summary = run.resume(total_steps=3)
    trained = {turn_id.split("-")[0] for turn_id, value in run.store.credit().items()}
    assert summary.steps == 3 and trained == {f"g{ordinal:06d}" for ordinal in range(6)}


def test_an_evaluation_that_is_cut_short_is_accounted_for(run: ScriptedRun) -> None:
    """On an interrupt the tokens of its episodes, ended and cut off, are in the ledger of the checkpoint."""

    async def play(task: EpisodeTask) -> Episode:
        if task.is_eval and task.episode_id > "e000001-row00002":
            run.interrupts.request()
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
        return await run.play(task)

    summary = run.train(
        total_steps=2,
        play=play,
        evaluation=EvalPlan([Source(ROWS[:4])], 1, 3, 4),
        eval_settings=EvalSettings(every_steps=1),
    )
    assert summary.stopped_by == "interrupt" and summary.steps == 1
    assert summary.ledger.sampled == run.num_stored_tokens == 48
    assert summary.ledger.masked["evaluation"] == 24
    assert run.latest().progress.ledger == summary.ledger


@pytest.mark.parametrize(
    ("due", "step", "tokens"), [({"before": True}, 0, 12), ({"every_steps": 1}, 1, 36), ({"after": True}, 1, 36)]
)
def test_an_evaluation_that_fails_is_accounted_for(
    run: ScriptedRun, due: dict[str, Any], step: int, tokens: int
) -> None:
    """The run is saved with every token of it, and the error that rises is the one of the episode."""

    async def play(task: EpisodeTask) -> Episode:
        if task.is_eval and task.task_id == "eval-row2":
            raise BackendError("the engine is gone")
        return await run.play(task)

    with pytest.raises(BackendError, match="the engine is gone"):
        run.train(
            total_steps=1,
            play=play,
            evaluation=EvalPlan([Source(ROWS[:3])], 1, 3, 1),
            eval_settings=EvalSettings(**due),
        )
    progress = run.latest().progress
    assert progress.step == step and progress.ledger.sampled == run.num_stored_tokens == tokens


def test_rollouts_that_stop_by_themselves_are_accounted_for(run: ScriptedRun, make_episode: MakeEpisode) -> None:
    """What was played for a step that never came is in the ledger of the checkpoint."""

    async def play(task: EpisodeTask) -> Episode:
        if task.group_id < "g000003":
            return await run.play(task)
        episode = make_episode(task.episode_id, {}, outcome=Outcome("failed", "boom"))
        run.store.add_episode(episode, step=task.step)
        return episode

    rollout = RolloutSettings(max_head_offpolicyness=0, max_consecutive_failures=2)
    with pytest.raises(UserError, match="2 episodes in a row failed"):
        run.train(total_steps=3, play=play, rollout=rollout)
    ledger = run.latest().progress.ledger
    assert ledger.sampled == run.num_stored_tokens > 24 and ledger.unbalanced == 0


def test_a_step_in_which_nothing_can_be_learned_is_skipped(run: ScriptedRun, make_episode: MakeEpisode) -> None:
    """Flat groups change no weight, are counted, and do not stop the run."""

    async def play(task: EpisodeTask) -> Episode:
        return make_episode(task.episode_id, {1: 1.0}, version=(task.step or 1) - 1)

    diary = Diary()
    summary = run.train(total_steps=2, play=play, diary=diary)
    assert [batch.num_trained for batch in run.learner.batches] == [0, 0] and summary.steps == 2
    assert diary.metrics[0]["train/skipped_steps"] == 1.0
    assert summary.ledger.masked == {"zero_advantage": 48}
