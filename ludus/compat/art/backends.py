"""What trains a model that a user's own code plays: the base of backends, and what they are asked and answer.

Knows: the records that pass between a model's user and what trains it; all of them go through JSON.
Knows not: where the weights are, HTTP, tensors.  Importing this needs the base install alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, Self

import pydantic

from ludus.compat.art.group import TrajectoryGroup
from ludus.compat.art.trajectory import Trajectory
from ludus.errors import ConfigError
from ludus.settings import Settings

Stage = Literal["batch", "train", "publish", "checkpoint"]


class TrainConfig(Settings):
    """How one call of `train` moves the weights; names and defaults are those of ART."""

    learning_rate: float = pydantic.Field(default=5e-6, gt=0)
    loss_fn: Literal["cispo", "ppo"] = "cispo"
    """cispo: every token moves, its importance weight is bounded. ppo: the ratio to the sampler is clipped. Not given:
    the backend's loss, of which `epsilon` and `epsilon_high` are the bounds."""
    epsilon: float | None = pydantic.Field(default=None, ge=0)
    """ppo: the ratio's lower bound is 1 - epsilon. None: 0.2. It cannot act with cispo, which has no lower bound."""
    epsilon_high: float | None = pydantic.Field(default=None, ge=0)
    """The upper bound is 1 + epsilon_high. None: 4 with cispo, epsilon with ppo."""
    kl_penalty_coef: float = pydantic.Field(
        default=0.0, ge=0, validation_alias=pydantic.AliasChoices("kl_penalty_coef", "beta")
    )
    """Weight of the KL divergence to the weights that the model was registered with."""
    scale_rewards: bool = True
    """Divide advantages by the standard deviation of the group."""
    turn_discount: float = pydantic.Field(default=1.0, ge=0.0, le=1.0)
    """What a turn keeps of the returns of the turns after it."""
    max_steps_off_policy: int | None = pydantic.Field(default=None, ge=0)
    """Tokens sampled by weights that are older by more steps are masked `stale`. None: none are."""
    save_checkpoint: bool = True

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        if "loss_fn" in self.model_fields_set and self.loss_fn == "cispo" and self.epsilon is not None:
            raise ConfigError(
                f"epsilon={self.epsilon} cannot act: cispo bounds importance weights from above alone; set "
                "epsilon_high, or loss_fn='ppo'"
            )
        return self


class TrainSFTConfig(Settings):
    """How supervised training moves the weights; names and defaults are those of ART."""

    learning_rate: float | tuple[float, ...] = 5e-5
    """One for all steps, or one for each step: see `create_lr_schedule`."""
    batch_size: int | Literal["auto"] = "auto"
    """Trajectories of one step. auto: 2."""
    epochs: int = pydantic.Field(default=1, ge=1)
    shuffle: bool = False
    """Another order of the trajectories in every epoch. Not by default: data often comes in the order it is meant."""
    seed: int = pydantic.Field(default=42, ge=0)


class TrainResult(Settings):
    """What a call of `train` came to."""

    step: int
    """Steps that the model has been trained for; also the version of its weights."""
    metrics: dict[str, float]
    checkpoint_path: str | None = None
    """Folder of the saved weights, where the backend is. None: the step saved none."""


@dataclass(frozen=True, slots=True)
class TrainProgress:
    """Reported while a call of `train` goes on."""

    stage: Stage
    """What has just been finished."""
    num_done: int = 1
    num_total: int = 1
    """How many of this stage the call has; supervised training takes several steps."""
    metrics: Mapping[str, float] | None = None


OnProgress = Callable[[TrainProgress], None]


@dataclass(frozen=True, slots=True)
class InferenceEndpoint:
    """Where a registered model answers."""

    base_url: str
    """OpenAI-compatible; every client and every tool reaches the model here."""
    api_key: str
    inference_name: str
    """Of the newest weights."""
    headers: Callable[[], Mapping[str, str]] = dict
    """What a request that is made now carries besides: it names the rollout it belongs to, as `current_rollout` has it,
    so that each rollout is recorded as a session of its own."""
    transport: Callable[[Any], Any] | None = None
    """Makes a transport of the given module (httpx or httpx2) that reaches `base_url`. None: its usual one does."""


class TrainableSpec(Protocol):
    """What a backend needs to know of a model."""

    name: str
    project: str
    base_model: str

    @property
    def internal_config(self) -> Mapping[str, Any]:
        """Keys of Ludus's configuration that this model's differs in, such as {"model": {"lora": None}}."""


class TrainArguments(Settings):
    """Of a step on trajectories that were rewarded."""

    kind: ClassVar[str] = "train"
    groups: list[TrajectoryGroup]
    config: TrainConfig = pydantic.Field(default_factory=TrainConfig)


class TrainSFTArguments(Settings):
    """Of supervised training."""

    kind: ClassVar[str] = "train_sft"
    trajectories: list[Trajectory]
    config: TrainSFTConfig = pydantic.Field(default_factory=TrainSFTConfig)


AnyTraining = TrainArguments | TrainSFTArguments


class ForkArguments(Settings):
    """Of a beginning with another model's weights."""

    kind: ClassVar[str] = "fork"
    from_model: str
    from_project: str | None = None
    not_after_step: int | None = None


class Backend(ABC):
    """Holds models, lets them be sampled from, and trains them. Used from one event loop at a time. Use as a context
    manager, or close it; what is trained is saved either way."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @abstractmethod
    async def register(self, model: TrainableSpec) -> None:
        """Make the model ready: its newest checkpoint if it has one, else its base model. Doing it again is allowed.

        Raises UserError if there is no such base model, or if the name is taken by a model with another one.
        """

    @abstractmethod
    async def prepare(self, model: TrainableSpec) -> InferenceEndpoint:
        """Where the registered model answers, always with its newest weights."""

    async def train(
        self,
        model: TrainableSpec,
        trajectory_groups: Iterable[TrajectoryGroup],
        config: TrainConfig | None = None,
        *,
        on_progress: OnProgress | None = None,
        idempotency_key: str | None = None,
        **options: Any,
    ) -> TrainResult:
        """One step on the groups; when it returns, the new weights answer.

        idempotency_key: two calls with one key are one step, also from two processes; of a server alone.
        options: fields of TrainConfig, in place of `config`.
        Raises UserError if a choice names a turn that no record holds, ConfigError for an option that is none of
        Ludus's.
        """
        if config is not None and options:
            raise ConfigError(f"{', '.join(sorted(options))} and a config say the same thing twice; pass one of them")
        asked = TrainArguments(groups=list(trajectory_groups), config=config or TrainConfig(**options))
        return await self._train(model, asked, on_progress or _ignore, idempotency_key)

    async def train_sft(
        self,
        model: TrainableSpec,
        trajectories: Iterable[Trajectory],
        config: TrainSFTConfig | None = None,
        *,
        on_progress: OnProgress | None = None,
        idempotency_key: str | None = None,
    ) -> TrainResult:
        """Supervised training on every assistant message; one step of the model, however many batches it takes."""
        asked = TrainSFTArguments(trajectories=list(trajectories), config=config or TrainSFTConfig())
        return await self._train(model, asked, on_progress or _ignore, idempotency_key)

    @abstractmethod
    async def _train(
        self, model: TrainableSpec, asked: AnyTraining, on_progress: OnProgress, idempotency_key: str | None
    ) -> TrainResult: ...

    @abstractmethod
    async def get_step(self, model: TrainableSpec) -> int:
        """Steps that the model has been trained for, restarts included."""

    @abstractmethod
    async def delete_checkpoints(self, model: TrainableSpec, keep: Collection[int]) -> None:
        """Delete all checkpoints but those of these steps and the newest."""

    async def fork(
        self,
        model: TrainableSpec,
        from_model: str,
        *,
        from_project: str | None = None,
        not_after_step: int | None = None,
    ) -> int:
        """Begin `model` with a checkpoint of another one; the step that was forked.

        from_project: None: the model's own.  not_after_step: the newest checkpoint up to this step. None: the newest.
        Raises UserError if there is none, or if `model` has checkpoints already.
        """
        asked = ForkArguments(from_model=from_model, from_project=from_project, not_after_step=not_after_step)
        return await self._fork(model, asked)

    @abstractmethod
    async def _fork(self, model: TrainableSpec, asked: ForkArguments) -> int: ...

    @abstractmethod
    async def close(self) -> None:
        """Free everything. Closing twice is allowed."""


def _ignore(_: TrainProgress) -> None: ...
