"""Replays a run's training from its record: the same batches through the same loop, without an engine or agents.

Knows: which settings affect the weights, what a run's folder keeps.  Knows not: what a step does.
Invariant: with the run's settings, on the same machine, the weights after each step equal the run's to the last bit.
With other settings a replay is offline training on the recorded episodes: the algorithm's correction weighs each token
as one that another policy sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from ludus.algorithms.resolve import algorithm_of
from ludus.api.plan import train_plan, with_decay_end
from ludus.api.run import compute_as_in, open_run
from ludus.api.sources import train_sources
from ludus.config import Config
from ludus.engines.recorded.settings import RecordedSettings
from ludus.errors import ConfigError, UserError
from ludus.loop.checkpoint import Checkpoint, checkpoints
from ludus.loop.interrupt import Interrupts
from ludus.loop.observer import Observer, RunSummary
from ludus.loop.recorded import RecordedGroups
from ludus.loop.settings import EvalSettings
from ludus.loop.train import RunComponents, TrainPlan, train
from ludus.processes.blocking import run_blocking
from ludus.runs.folder import read_summary
from ludus.runs.names import free_name
from ludus.runs.store import RunStore
from ludus.settings import Path_, leaves
from ludus.teachers.settings import NoTeacherSettings, ScoringSettings

LoadConfig = Callable[[Path, Sequence[str]], Config]
# Keys that affect the weights when the groups are given.
_MOVES = (
    *("algorithm", "trainer", "critic", "teacher", "model", "seed", "train_dataset.mix"),
    *("rollout.agent.turn_discount", "rollout.agent.export_style"),
    *("rollout.max_head_offpolicyness", "rollout.stale_tokens"),
)
# Of these, the keys that only change the order in which numbers are summed.
_ROUNDS = (
    *("trainer.ranks", "trainer.tensor_parallel", "trainer.context_parallel", "trainer.row_tokens"),
    *("trainer.activation_checkpointing", "trainer.record_tokens"),
)
_ACTS = (*_MOVES, "name", "run_root", "checkpoint", "total_train_steps", "scheduler")
_STEP_TIME = "time/step_s"


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of a replay."""

    summary: RunSummary
    of: str
    """The folder of the replayed run."""
    from_step: int
    changed: Sequence[str]
    """`key: before → now` of each changed setting that affects the weights. Empty: it is the same training."""
    weights_equal: bool | None
    """Whether model and trainer state equal the run's to the last bit. None: the run has saved neither of this step."""
    times_faster: float | None
    """How many times faster than the run, over the same steps. None: its metrics do not say how long they took."""


def replay(
    folder: Path,
    overrides: Sequence[str] = (),
    *,
    load: LoadConfig,
    from_step: int = 0,
    observer: Observer | None = None,
) -> Replayed:
    """Train again on the batches that the run in `folder` was trained on, as a new run beside it.

    overrides: `a.b=value`, such as a name (default: NAME-replay), an algorithm, or fewer steps (total_train_steps).
    load: reads a configuration.  from_step: begin with the run's checkpoint of that step. 0: with the initial model.
    Raises UserError if the record lacks something, ConfigError for a setting that cannot act in a replay, or with which
    tokens of another policy cannot be learned from.
    """
    with RunStore.look(folder) as record:
        recorded, config = load(folder / "config.yaml", ()), load(folder / "config.yaml", overrides)
        before, now = _values(recorded), _values(config)
        different = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
        idle = [".".join(key) for key in different if not _is_below(key, _ACTS)]
        if idle:
            raise ConfigError(f"{', '.join(idle)} cannot act in a replay: nothing is played; leave it out")
        changed = [key for key in different if _is_below(key, _MOVES)]
        is_offline = any(not _is_below(key, _ROUNDS) for key in changed)
        _check_policy(config, is_offline=is_offline)
        if not changed:
            _check_same_settings(record, recorded, before, from_step, load)
        found = _checkpoint(record, from_step) if from_step else None
        num_steps = min(_num_steps(record), config.total_train_steps or _num_steps(record))
        if num_steps <= from_step:
            raise UserError(
                f"the run {record.name!r} was trained for {num_steps} steps: none is left after {from_step}"
            )
        config, plan = _prepared(config, record, num_steps)
        with Interrupts() as interrupts:
            training = _train(config, plan, record, found, observer or Observer(), interrupts, is_offline=is_offline)
            summary = run_blocking(training)
        with RunStore.open(config.folder) as trained:
            return Replayed(
                summary=summary,
                of=str(folder),
                from_step=from_step,
                changed=[f"{'.'.join(key)}: {before.get(key)} → {now.get(key)}" for key in changed],
                weights_equal=_is_equal(folder, config.folder, summary),
                times_faster=_times_faster(record, trained, range(from_step + 1, summary.steps + 1)),
            )


async def _train(
    config: Config,
    plan: TrainPlan,
    record: RunStore,
    found: Checkpoint | None,
    observer: Observer,
    interrupts: Interrupts,
    *,
    is_offline: bool,
) -> RunSummary:
    """is_offline: the recorded tokens are another policy's from the first step on."""
    observer.on_phase(f"loading {config.model.path}")
    teacher = config.teacher
    has_hints = isinstance(teacher, ScoringSettings) and teacher.hint is not None
    sources = train_sources(config.train_dataset, None) if has_hints else ()
    async with AsyncExitStack() as stack:
        opening = open_run(config, found, goes_on=False, text=config.to_yaml(), sources=sources)
        run = await stack.enter_async_context(opening)
        compute_as_in(record, run.start.step + 1)
        run.local.processes.announce()
        parts = RunComponents(
            engine=run.local.engine,
            learner=run.learner,
            teacher=None if run.teacher is None else replace(run.teacher, is_offline=is_offline),
            play=None,
            store=run.store,
            observer=observer,
            interrupts=interrupts,
            save_model=partial(run.local.save, run.learner),
            arrivals=RecordedGroups(record, version=run.start.step),
        )
        run.local.processes.on_end(interrupts.request)
        try:
            return await train(parts, plan, run.start)
        except Exception:
            run.local.processes.check()
            raise


def _prepared(config: Config, record: RunStore, num_steps: int) -> tuple[Config, TrainPlan]:
    """The configuration and the plan of the new run."""
    last = next(reversed(checkpoints(record.checkpoints)), None)
    num_rows = 0 if last is None else sum(each.num_rows for each in last.progress.data.values())
    config = with_decay_end(config, train_plan(config, (), num_rows=num_rows))
    if isinstance(config.teacher, NoTeacherSettings):  # with a teacher the policy scores tokens, which needs an engine
        config = config.model_copy(update={"engine": RecordedSettings()})
    if config.name == record.name:
        config = config.model_copy(update={"name": free_name(Path(config.run_root), f"{record.name}-replay")})
    RunStore.check_free(config.run_root, config.name)
    plan = replace(
        train_plan(config, (), num_rows=0),
        rollout=config.rollout.model_copy(update={"replay": None}),  # groups drawn from the buffer are in the record
        curriculum=None,
        eval_settings=EvalSettings(),
        total_steps=num_steps,
        total_seconds=None,
        steps_key="total_train_steps",
    )
    return config, plan


def _check_policy(config: Config, *, is_offline: bool) -> None:
    """Raises ConfigError if the tokens are another policy's and the algorithm cannot learn from those."""
    algorithm_of(config.algorithm).load()
    if not is_offline:
        return
    obstacle = config.algorithm.off_policy_obstacle
    if obstacle is not None:
        raise ConfigError(f"a replay with other settings trains on tokens of other policies, and {obstacle}")


def _check_same_settings(
    record: RunStore, recorded: Config, values: Mapping[Path_, Any], from_step: int, load: LoadConfig
) -> None:
    """Raises UserError if earlier steps of the run were trained with other settings than its configuration has now."""
    decays = any(each.optimizer.decay != "constant" for each in (recorded.trainer, recorded.critic))
    moves = (*_MOVES, *(("total_train_steps", "total_train_epochs") if decays else ()))
    for path in sorted(record.folder.glob("config.until-*.yaml")):
        step = int(path.stem.rpartition("-")[2])
        before = _values(load(path, ()))
        keys = [key for key in before.keys() | values.keys() if before.get(key) != values.get(key)]
        other = sorted(".".join(key) for key in keys if _is_below(key, moves))
        if step > from_step and other:
            raise UserError(
                f"the run {record.name!r} was trained with other settings until step {step} ({', '.join(other)}; "
                f"{path.name}): it can be replayed with --from {step}, if a checkpoint of that step is there"
            )


def _checkpoint(record: RunStore, step: int) -> Checkpoint:
    there = {each.progress.step: each for each in checkpoints(record.checkpoints)}
    if step not in there or not there[step].has_trainer:
        steps = ", ".join(map(str, there)) or "none"
        raise UserError(f"the run {record.name!r} has no checkpoint of step {step} to go on from; it has: {steps}")
    return there[step]


def _num_steps(record: RunStore) -> int:
    """Steps that the run was trained for."""
    saved = [each.progress.step for each in checkpoints(record.checkpoints)]
    measured = [step for step, metrics in record.metrics() if _STEP_TIME in metrics]
    return max([*saved, *measured], default=0)


def _is_equal(recorded: Path, replayed: Path, summary: RunSummary) -> bool | None:
    """Compares the trained models, if both runs have one, and the trainers' states after the last step. None: neither
    is there."""
    before, pairs = read_summary(recorded) or {}, []
    if before.get("steps") == summary.steps and before.get("model_files") and summary.model_files:
        pairs.append([_weights(before["model_files"]), _weights(summary.model_files)])
    states = [
        {name: each for name, each in found.files.items() if name.startswith("trainer/")}
        for folder in (recorded, replayed)
        for found in checkpoints(folder / "checkpoints")
        if found.progress.step == summary.steps
    ]
    if len(states) == 2:
        pairs.append([_weights(each) for each in states])
    return all(ours == theirs for ours, theirs in pairs) if pairs else None


def _weights(files: Mapping[str, Any]) -> dict[str, Any]:
    return {name: each for name, each in files.items() if name.endswith(".safetensors")}


def _times_faster(record: RunStore, trained: RunStore, steps: range) -> float | None:
    took = [
        [metrics[_STEP_TIME] for step, metrics in store.metrics() if step in steps and _STEP_TIME in metrics]
        for store in (record, trained)
    ]
    before, now = map(sum, took)
    return before / now if len(took[0]) == len(took[1]) == len(steps) and now > 0 else None


def _values(config: Config) -> dict[Path_, Any]:
    return dict(leaves(yaml.safe_load(config.to_yaml())))


def _is_below(key: Path_, tops: Sequence[str]) -> bool:
    """Whether the key, or one above it, is in `tops`."""
    return any(".".join(key[: top.count(".") + 1]) == top for top in tops)
