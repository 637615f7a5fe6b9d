"""The whole configuration of a run, composed of the settings of each component.

Knows: which keys work together.  Knows not: files of data, agents, tensors.
Invariant: a value set explicitly that differs from its default and has no effect is named in a warning, here or where
it is used; values that contradict each other are an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypeVar

import pydantic

from ludus.algorithms.corrections import DivergenceSettings
from ludus.algorithms.resolve import algorithm_of
from ludus.algorithms.settings import AlgorithmSettings
from ludus.engines.local.settings import LocalSettings
from ludus.engines.settings import EngineSettings
from ludus.engines.table import ENGINES
from ludus.engines.vllm.settings import VllmSettings
from ludus.errors import ConfigError
from ludus.loop.settings import (
    CheckpointSettings,
    EvalSettings,
    TrainDatasetSettings,
    ValidDatasetSettings,
)
from ludus.models.settings import ModelSettings
from ludus.processes.placement import SCHEDULERS, LocalScheduler, SchedulerSettings
from ludus.rollout.settings import GenerationSettings, OnlineSettings, ReplaySettings, RolloutSettings
from ludus.runs.settings import TrackersSettings
from ludus.settings import (
    Idle,
    OneOf,
    Settings,
    acting,
    dump_settings,
    idle_keys,
    read_yaml,
    with_overrides,
    without_idle,
)
from ludus.teachers.settings import (
    TEACHERS,
    ModelTeacherSettings,
    NoTeacherSettings,
    PolicyTeacherSettings,
    TeacherSettings,
)
from ludus.trainer.settings import CriticSettings, TrainerSettings

ConfigT = TypeVar("ConfigT", bound="Config")
_NOT_ONLINE = """
    workflow config_class train_dataset.path train_dataset.mix train_dataset.shuffle train_dataset.curriculum
    train_dataset.demonstrations
    valid_dataset.path valid_dataset.mix total_train_epochs
    rollout.retries rollout.actors rollout.max_concurrent_rollouts rollout.max_consecutive_failures rollout.oversample
    eval eval_gconfig eval_workflow
"""
"""Keys that only have an effect if Ludus runs the agent itself."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class Config(Settings):
    """One run. Every key has a default.

    A subclass may add further kinds of agent: their keys, and which agents and rows are theirs.
    """

    agent_kinds: ClassVar[Mapping[str, str]] = {}
    """Import string of the `AgentKind`, by a method that agents of this kind have."""
    processes: ClassVar[str] = "ludus.api.processes:alone"
    """Import string of the function that opens the run's `Processes`."""

    name: str = "run"
    """The run's folder is `run_root/name`."""
    run_root: str = "runs"
    seed: int = pydantic.Field(default=0, ge=0)
    """Everything random in a run is derived from it."""
    model: ModelSettings = ModelSettings()
    engine: Annotated[EngineSettings, OneOf(ENGINES, "local")] = LocalSettings()
    scheduler: Annotated[SchedulerSettings, OneOf(SCHEDULERS, "local")] = LocalScheduler()
    trainer: TrainerSettings = TrainerSettings()
    critic: CriticSettings = CriticSettings()
    gconfig: GenerationSettings = GenerationSettings()
    algorithm: AlgorithmSettings = AlgorithmSettings()
    teacher: Annotated[TeacherSettings, OneOf(TEACHERS, "none")] = NoTeacherSettings()
    """The model that scores sampled tokens, for `algorithm.distillation`."""
    eval_gconfig: GenerationSettings | None = None
    """Overrides of `gconfig` for evaluations. A row is played once unless `n_samples` is given. None: no overrides."""
    rollout: RolloutSettings = RolloutSettings()
    train_dataset: TrainDatasetSettings = TrainDatasetSettings()
    valid_dataset: ValidDatasetSettings = ValidDatasetSettings()
    workflow: str | None = None
    """The agent: 'pkg.mod:Name' or 'path/to/file.py:Name'. None: it is passed in Python."""
    workflow_kwargs: dict[str, Any] = pydantic.Field(default_factory=dict)
    config_class: str | None = None
    """'pkg.mod.Name' of a dataclass that extends this configuration and has the agent as its property. None: none."""
    config_kwargs: dict[str, Any] = pydantic.Field(default_factory=dict)
    """Values for that class's own parameters."""
    eval_workflow: str | None = None
    """The agent for evaluations. None: the trained one."""
    eval_workflow_kwargs: dict[str, Any] = pydantic.Field(default_factory=dict)
    should_accept_fn: str | None = None
    """Import string of a function that gets a complete group and says whether to train on it. None: all are."""
    total_train_steps: int | None = pydantic.Field(default=None, ge=1)
    total_train_epochs: int | None = pydantic.Field(default=None, ge=1)
    """Passes over the training rows. Not together with total_train_steps. None: one, if nothing else ends the run."""
    total_train_seconds: float | None = pydantic.Field(default=None, gt=0)
    """Wall time of training, without evaluations; with a number of steps, whichever ends first."""
    eval: EvalSettings = EvalSettings()
    checkpoint: CheckpointSettings = CheckpointSettings()
    trackers: TrackersSettings = TrackersSettings()

    @pydantic.field_serializer("eval_gconfig")
    def _keys_given(self, settings: GenerationSettings | None) -> dict[str, Any] | None:
        """Only the keys that were given: if the others were written, their defaults would replace `gconfig`'s."""
        return None if settings is None else settings.model_dump(mode="json", exclude_unset=True)

    @pydantic.field_validator("algorithm")
    @classmethod
    def _with_length(cls, algorithm: AlgorithmSettings, info: pydantic.ValidationInfo) -> AlgorithmSettings:
        """The maximum length follows from `gconfig`, unless that is invalid itself."""
        return algorithm.of_length(info.data["gconfig"].max_new_tokens) if "gconfig" in info.data else algorithm

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        if not _NAME.fullmatch(self.name):
            raise ConfigError(f"name={self.name!r} must be a folder's name: letters, digits, '.', '_' and '-'")
        if self.total_train_steps is not None and self.total_train_epochs is not None:
            raise ConfigError("total_train_steps and total_train_epochs say the same thing twice; set one of them")
        if self.config_class is not None and self.workflow is not None:
            raise ConfigError("workflow and config_class both name an agent; remove one of them")
        if self.algorithm.distillation is not None and isinstance(self.teacher, NoTeacherSettings):
            raise ConfigError(
                "algorithm.distillation needs somebody who teaches: set teacher.kind to model (with teacher.path), "
                "server (with teacher.urls) or policy (with teacher.hint.column)"
            )
        if self.engine.placement == "shared" and (obstacles := list(_alone_on_its_card(self))):
            raise ConfigError(
                "engine.placement=shared is for one vLLM on the trainer's card, which the two have in turns; change "
                f"{', '.join(obstacles)}; or leave engine.placement out, with a card of its own for each"
            )
        if self.model.quantization != "none" and self.trainer.ranks > 1:
            raise ConfigError(
                f"model.quantization={self.model.quantization} keeps weights that cannot be shared out over "
                f"trainer.ranks={self.trainer.ranks}: set trainer.ranks=1, or leave model.quantization unset"
            )
        if self.train_dataset.demonstrations is not None:
            _check_demonstrations(self.algorithm)
        if self.rollout.replay is not None:
            _check_replay(self.rollout.replay, self.train_dataset.batch_size, self.algorithm)
        rollout, n_samples = self.rollout, self.gconfig.n_samples
        if rollout.is_set("min_members") and rollout.min_members > n_samples:
            raise ConfigError(
                f"rollout.min_members={rollout.min_members} is more than gconfig.n_samples={n_samples}: "
                "no group could ever be complete"
            )
        return self

    def idle(self) -> Iterator[Idle]:
        if self.algorithm.distillation is None and not isinstance(self.teacher, NoTeacherSettings):
            yield Idle("teacher", "algorithm.distillation is not set; algorithm.name=distillation sets it")
        if self.is_set("algorithm.demonstrations") and self.train_dataset.demonstrations is None:
            yield Idle("algorithm.demonstrations", "train_dataset.demonstrations names no column that has any")
        if self.config_kwargs and self.config_class is None:
            yield Idle("config_kwargs", "no config_class is named")
        if self.is_set("engine.keep_kv_on_publish") and self.rollout.max_head_offpolicyness == 0:
            yield Idle(
                "engine.keep_kv_on_publish",
                "with rollout.max_head_offpolicyness=0 nothing is being sampled when weights are published",
            )
        yield from _idle_between(self)
        if self.is_set("critic") and not self.has_critic:
            yield Idle("critic", "no advantage is made of values; algorithm.name=ppo has a critic")
        if self.is_set("scheduler.trainer") and self.trainer.ranks == 1:
            yield Idle("scheduler.trainer", "with trainer.ranks=1 the run's own process trains alone")

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Self:
        """The configuration in a file's data. Raises ConfigError for an unknown key or an invalid value."""
        return cls.of(data)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """The configuration with these values, without those that have no effect; one warning names them all."""
        kept, idle = without_idle(cls, values)
        config = cls(**kept)
        return acting(config, [*idle, *idle_keys(config)])

    @classmethod
    def load(cls, path: Path | str | None = None, overrides: Sequence[str] = ()) -> Self:
        """The configuration in a YAML file (None: the defaults) with `a.b=value` overrides.

        Raises UserError if the file is missing, ConfigError for an unknown key or an invalid value.
        """
        data = {} if path is None else read_yaml(Path(path))
        return cls.read(with_overrides(data, overrides))

    def row_kind(self, rows: Sequence[Mapping[str, Any]]) -> str | None:
        """Import string of the `AgentKind` for these rows if no agent is given. None: there is none."""
        return None

    def unread_by(self, kind: str | None) -> Mapping[str, str]:
        """Keys that are set but not read by this kind of agent, and which kind reads them. None: an agent that uses
        HTTP."""
        return {}

    @property
    def has_critic(self) -> bool:
        """Whether the algorithm needs values."""
        return "values" in algorithm_of(self.algorithm).needs.measured

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return Path(self.run_root) / self.name

    @property
    def eval_generation(self) -> GenerationSettings:
        """Sampling of evaluations: `gconfig`, once per row, overridden by the keys of `eval_gconfig`."""
        given = {} if self.eval_gconfig is None else self.eval_gconfig.model_dump(exclude_unset=True)
        return self.gconfig.model_copy(update={"n_samples": 1, **given})

    def to_yaml(self) -> str:
        """Every key with its value, as `load_config` reads it; below `eval_gconfig` the keys that were given."""
        return dump_settings(self)


def load_config(path: Path | str | None = None, overrides: Sequence[str] = ()) -> Config:
    """As `Config.load`."""
    return Config.load(path, overrides)


def check_training(config: ConfigT) -> ConfigT:
    """The configuration without keys that have no effect in training; a warning names them.

    Raises ConfigError if training could not do what the configuration says.
    """
    is_online = isinstance(config.rollout.agent, OnlineSettings)
    config = acting(config, [*idle_keys(config), *(_idle_online(config) if is_online else _idle_evaluation(config))])
    if is_online and config.total_train_steps is None and config.total_train_seconds is None:
        raise ConfigError("training has no end: set total_train_steps or total_train_seconds")
    generation, needs = config.gconfig, algorithm_of(config.algorithm).needs
    if is_online and needs.greedy:
        raise ConfigError(
            "algorithm.advantage.baseline=greedy compares with one more answer to each row, and with "
            "rollout.agent.mode=online others play; choose another baseline, such as leave_one_out"
        )
    if generation.temperature == 0.0:
        raise ConfigError("gconfig.temperature=0 samples greedily, and greedy tokens cannot be trained on")
    smallest = min(config.rollout.min_members, generation.n_samples)
    # An episode may hold a whole group: answers to one prompt, each with a reward of its own.
    is_group_by_itself = generation.n_samples == 1 and config.rollout.is_set("min_members")
    if smallest < needs.members and not (needs.may_be_turns and is_group_by_itself):
        raise ConfigError(
            f"algorithm.advantage ({config.algorithm.advantage}) compares the members of a group, and a group may have "
            f"{smallest} (gconfig.n_samples={generation.n_samples}, rollout.min_members={config.rollout.min_members}); "
            f"make both at least {needs.members}, or set algorithm.advantage.baseline=none. Where one episode holds a "
            "whole group, answers to one prompt that have a reward each, set gconfig.n_samples=1 and "
            "rollout.min_members=1"
        )
    return config


def _alone_on_its_card(config: Config) -> Iterator[str]:
    """Each key with which an engine and the trainer cannot have one card in turns, and what to set instead."""
    engine, rollout, teacher = config.engine, config.rollout, config.teacher
    if isinstance(engine, VllmSettings):
        num_engines = len(engine.urls) or engine.replicas
        if num_engines * engine.cards_each > 1:
            yield f"engines on {num_engines * engine.cards_each} cards (to one, with one server in engine.urls)"
        if engine.weights == "nccl":
            yield "engine.weights=nccl (to auto: NCCL connects no card with itself)"
    else:  # ours in the trainer's process, with its weights
        yield f"engine.kind={engine.kind} (to vllm, which can sleep; local needs no placement)"
    if config.trainer.ranks > 1:
        yield f"trainer.ranks={config.trainer.ranks} (to 1)"
    if config.scheduler.type != "local":
        yield f"scheduler.type={config.scheduler.type} (to local)"
    if config.scheduler.engine.gpus:
        yield f"scheduler.engine.gpus={config.scheduler.engine.gpus:g} (to 0)"
    if rollout.max_token_age != 0:  # while the trainer computes, nothing can be sampled ahead
        ahead = f"rollout.max_head_offpolicyness={rollout.max_head_offpolicyness}"
        yield f"{ahead} and rollout.stale_tokens={rollout.stale_tokens} (to 0 and mask)"
    is_on_card = isinstance(teacher, ModelTeacherSettings) and teacher.device != "cpu"
    if is_on_card or (isinstance(teacher, PolicyTeacherSettings) and teacher.weights == "first"):
        yield f"teacher.kind={teacher.kind} (to server, or teacher.device to cpu: it would compute on the card as well)"


def _check_demonstrations(algorithm: AlgorithmSettings) -> None:
    """Raises ConfigError if the algorithm could not learn from demonstrations."""
    needs = algorithm_of(algorithm).needs
    if needs.pairs or needs.sides:
        raise ConfigError(
            f"train_dataset.demonstrations have a loss of their own, and algorithm.loss={algorithm.loss.kind} compares "
            "members of a group; leave train_dataset.demonstrations out, or choose another algorithm. Pairs from files "
            "are for ludus.train_preferences"
        )
    if needs.teacher:
        raise ConfigError(
            "train_dataset.demonstrations are learned from whole, and algorithm.distillation judges each token that "
            "the policy sampled; leave out one of the two"
        )


def _check_replay(replay: ReplaySettings, batch_size: int, algorithm: AlgorithmSettings) -> None:
    """Raises ConfigError if nothing could be replayed, or if the algorithm could not learn from replayed groups."""
    if replay.num_places(batch_size) == 0:
        raise ConfigError(
            f"rollout.replay.share={replay.share:g} of train_dataset.batch_size={batch_size} is less than one group; "
            f"set a share of {1 / batch_size:.3g} or more, or a larger batch"
        )
    obstacle = algorithm.off_policy_obstacle
    if obstacle is not None:
        raise ConfigError(f"rollout.replay trains on tokens of other policies, and {obstacle}")


def _idle_between(config: Config) -> Iterator[Idle]:
    """Settings that bound prox / mu, if no trained token is so old that the two differ."""
    algorithm, rollout = config.algorithm, config.rollout
    is_between = algorithm.has_proximal and algorithm.proximal == "interpolate"
    if not is_between or rollout.replay is not None or rollout.max_token_age not in (0, 1):
        return
    why = (
        "with algorithm.proximal=interpolate the proximal policy of tokens at most one version old is the one that "
        "sampled them; it acts with rollout.max_head_offpolicyness above 1, or with proximal recompute or reuse"
    )
    if algorithm.second_moment is not None:
        yield Idle("algorithm.second_moment", why)
    for name, value in algorithm.correction:
        is_ratio = not isinstance(algorithm.correction, DivergenceSettings)
        bounds_one = (name in ("cap", "high") and value < 1) or (name in ("low", "floor") and value > 1)
        if name not in ("kind", "of") and algorithm.correction.is_set(name) and not (is_ratio and bounds_one):
            yield Idle(f"algorithm.correction.{name}", why)


def _idle_online(config: Config) -> Iterator[Idle]:
    why = "with rollout.agent.mode=online the sessions of others are trained on, as they arrive"
    yield from (Idle(key, why) for key in _NOT_ONLINE.split() if config.is_set(key))


def _idle_evaluation(config: Config) -> Iterator[Idle]:
    if config.eval.is_asked:
        return
    why = "no evaluation is asked for; eval.before, eval.after or eval.every_steps ask for one"
    held_out = ("eval_gconfig", "valid_dataset.max_rows", "eval_workflow")
    yield from (Idle(key, why) for key in held_out if config.is_set(key))
