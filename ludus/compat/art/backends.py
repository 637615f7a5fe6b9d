"""The base class of backends, which serve and train models for rollouts in a user's own code; their arguments and
results.

Knows: the records exchanged between a model and its backend, all of them JSON-able.
Knows not: where the weights are, HTTP, tensors.  Importing this needs only the base install.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, Self

import pydantic

from ludus.compat import overrides
from ludus.compat.art.group import TrajectoryGroup
from ludus.compat.art.trajectory import Trajectory
from ludus.compat.members import Told
from ludus.errors import ConfigError
from ludus.settings import Settings

logger = logging.getLogger(__name__)

_TOLD = Told("art", "local.backend.LocalBackend.train")
_SAYS_NOTHING = {
    "advantage_balance": 0.0,
    "importance_sampling_level": "token",
    "kimi_k2_tau": None,
    "kl_penalty_reference_step": None,
    "kl_ref_adapter_path": None,
    "mask_prob_ratio": False,
    "max_negative_advantage_importance_sampling_weight": None,
    "num_trajectories_learning_rate_multiplier_power": 0.0,
    "scale_learning_rate_by_reward_std_dev": False,
    "truncated_importance_sampling": None,
    "loss_fn_config": None,
    "adam_params": None,
}
"""Options of ART that are accepted only with ART's default value."""

Stage = Literal["batch", "train", "publish", "checkpoint"]


_NO_BUCKET = "a model stays in the folder where its backend is, and goes on from there; copy the folder with any tool"

Grouped = TrajectoryGroup | Iterable[Trajectory | BaseException]


class TrainConfig(Settings):
    """Settings of one call of `train`; names and defaults are those of ART."""

    learning_rate: float = pydantic.Field(default=5e-6, gt=0)
    loss_fn: Literal["cispo", "ppo"] = "cispo"
    """cispo: every token has a gradient, and importance weights are bounded. ppo: the ratio to the sampler is clipped.
    Not given: the backend's loss, whose bounds are `epsilon` and `epsilon_high`."""
    epsilon: float | None = pydantic.Field(default=None, ge=0)
    """ppo: the ratio's lower bound is 1 - epsilon. None: 0.2. Not allowed with cispo, which has no lower bound."""
    epsilon_high: float | None = pydantic.Field(default=None, ge=0)
    """The upper bound is 1 + epsilon_high. None: 4 with cispo, epsilon with ppo."""
    kl_penalty_coef: float = pydantic.Field(
        default=0.0, ge=0, validation_alias=pydantic.AliasChoices("kl_penalty_coef", "beta")
    )
    """Weight of the KL divergence to the weights that the model was registered with."""
    scale_rewards: bool = True
    """Divide advantages by the standard deviation of the group."""
    turn_discount: float = pydantic.Field(default=1.0, ge=0.0, le=1.0)
    """Discount factor on the returns of later turns."""
    max_steps_off_policy: int | None = pydantic.Field(default=None, ge=0)
    """Tokens sampled by weights that are more steps older are masked as `stale`. None: none are."""
    save_checkpoint: bool = True
    grad_accumulation_sequences: int | None = None
    """Always None: a given value is ignored with a warning."""

    @pydantic.model_validator(mode="before")
    @classmethod
    def _without_unneeded(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        said = {name: value for name, value in given.items() if value != _SAYS_NOTHING.get(name, _TOLD)}
        _TOLD.look(said)
        kept = {name: value for name, value in said.items() if name not in _TOLD.ignored}
        if kept.pop("normalize_advantages", True) is False:  # former name of scale_rewards
            kept["scale_rewards"] = False
        if "ppo" in kept:  # replaced by loss_fn in ART 0.5
            kept.setdefault("loss_fn", "ppo" if kept["ppo"] else "cispo")
            kept.pop("ppo")
        return kept

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        if "loss_fn" in self.model_fields_set and self.loss_fn == "cispo" and self.epsilon is not None:
            raise ConfigError(
                f"epsilon={self.epsilon} cannot act: cispo bounds importance weights from above alone; set "
                "epsilon_high, or loss_fn='ppo'"
            )
        return self


class TrainSFTConfig(Settings):
    """Settings of supervised training; names and defaults are those of ART."""

    learning_rate: float | tuple[float, ...] = 5e-5
    """One rate for all steps, or one for each step, as from `create_lr_schedule`."""
    batch_size: int | Literal["auto"] = "auto"
    """Trajectories of one step. auto: 2."""
    epochs: int = pydantic.Field(default=1, ge=1)
    shuffle: bool = False
    """Shuffle the trajectories in every epoch. Off by default, because the order of the data is often intended."""
    seed: int = pydantic.Field(default=42, ge=0)


class TrainResult(Settings):
    """The result of a call of `train`."""

    step: int
    """Steps that the model has been trained for; also the version of its weights."""
    metrics: dict[str, float]
    checkpoint_path: str | None = None
    """Folder of the saved weights, on the backend's machine. None: none were saved."""


@dataclass(frozen=True, slots=True)
class TrainProgress:
    """Progress of a call of `train`."""

    stage: Stage
    """The stage that was just finished."""
    num_done: int = 1
    num_total: int = 1
    """Number of such stages in the call; supervised training has several steps."""
    metrics: Mapping[str, float] | None = None


OnProgress = Callable[[TrainProgress], None]


@dataclass(frozen=True, slots=True)
class InferenceEndpoint:
    """The endpoint of a registered model."""

    base_url: str
    """URL of an OpenAI-compatible API, for any client or tool."""
    key: Callable[[], str]
    """Returns the API key for a request that is made now. It identifies the current rollout, so that each rollout is
    recorded as its own session."""
    inference_name: str
    """Name of the model with the newest weights."""
    transport: Callable[[Any], Any] | None = None
    """Makes a transport, of the given module (httpx or httpx2), that reaches `base_url`. None: the default
    transport."""


class TrainableSpec(Protocol):
    """What a backend needs to know about a model."""

    name: str
    project: str
    base_model: str

    @property
    def internal_config(self) -> Mapping[str, Any]:
        """Settings of Ludus that are specific to this model, such as {"model": {"lora": None}}."""


class TrainArguments(Settings):
    """Arguments of a training step on rewarded trajectories."""

    kind: ClassVar[str] = "train"
    groups: list[TrajectoryGroup]
    config: TrainConfig = pydantic.Field(default_factory=TrainConfig)


class TrainSFTArguments(Settings):
    """Arguments of supervised training."""

    kind: ClassVar[str] = "train_sft"
    trajectories: list[Trajectory]
    config: TrainSFTConfig = pydantic.Field(default_factory=TrainSFTConfig)


AnyTraining = TrainArguments | TrainSFTArguments


class ForkArguments(Settings):
    """Arguments of a fork from another model's weights."""

    kind: ClassVar[str] = "fork"
    from_model: str
    from_project: str | None = None
    not_after_step: int | None = None


class Backend(ABC):
    """Serves and trains models. Used from one event loop at a time. Use as a context manager, or close it; trained
    weights are saved in any case."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @abstractmethod
    async def register(self, model: TrainableSpec) -> None:
        """Load the model: its newest checkpoint, else its base model. Registering twice is allowed.

        Raises UserError if the base model does not exist, or if another model of the same name has another base.
        """

    @abstractmethod
    async def prepare(self, model: TrainableSpec) -> InferenceEndpoint:
        """The endpoint of the registered model, which always uses the newest weights."""

    async def train(
        self,
        model: TrainableSpec,
        trajectory_groups: Iterable[Grouped],
        config: TrainConfig | None = None,
        *,
        _config: Mapping[str, Any] | None = None,
        on_progress: OnProgress | None = None,
        idempotency_key: str | None = None,
        **options: Any,
    ) -> TrainResult:
        """Train one step on the groups; when it returns, the new weights are in use.

        trajectory_groups: a list of trajectories counts as a group; None is skipped.
        _config: fields of TrainConfig that override those of `config`.
        idempotency_key: calls with the same key, even from several processes, make one step; only with a server.
        options: fields of TrainConfig, instead of `config`.
        Raises UserError if a choice names a turn without a record, ConfigError for an unknown option.
        """
        end_if_trained(model.name, await self.get_step(model))
        acting = options.keys() - _TOLD.ignored.keys()
        if config is not None and acting:
            raise ConfigError(f"{', '.join(sorted(acting))} and a config say the same thing twice; pass one of them")
        given = {} if config is None else config.model_dump(exclude_unset=True)
        asked = TrainArguments(
            groups=[as_group(each) for each in trajectory_groups if each is not None],
            config=TrainConfig(**{**given, **(_config or {}), **options}),
        )
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
        """Train on every assistant message with a supervised loss; counts as one step, whatever the number of
        batches."""
        asked = TrainSFTArguments(trajectories=list(trajectories), config=config or TrainSFTConfig())
        return await self._train(model, asked, on_progress or _ignore, idempotency_key)

    @abstractmethod
    async def _train(
        self, model: TrainableSpec, asked: AnyTraining, on_progress: OnProgress, idempotency_key: str | None
    ) -> TrainResult: ...

    @abstractmethod
    async def get_step(self, model: TrainableSpec) -> int:
        """Number of steps that the model was trained for, including those before restarts."""

    @abstractmethod
    async def delete_checkpoints(self, model: TrainableSpec, keep: Collection[int]) -> None:
        """Delete all checkpoints except those of these steps and the newest."""

    async def fork(
        self,
        model: TrainableSpec,
        from_model: str,
        *,
        from_project: str | None = None,
        not_after_step: int | None = None,
    ) -> int:
        """Initialize `model` from a checkpoint of another model; returns that checkpoint's step.

        from_project: None: the model's own.  not_after_step: the newest checkpoint up to this step. None: the newest.
        Raises UserError if there is none, or if `model` has checkpoints already.
        """
        asked = ForkArguments(from_model=from_model, from_project=from_project, not_after_step=not_after_step)
        return await self._fork(model, asked)

    @abstractmethod
    async def _fork(self, model: TrainableSpec, asked: ForkArguments) -> int: ...

    async def _experimental_fork_checkpoint(
        self,
        model: TrainableSpec,
        from_model: str,
        from_project: str | None = None,
        from_s3_bucket: str | None = None,
        not_after_step: int | None = None,
        **_: Any,
    ) -> None:
        """`fork` under ART's name. Raises ConfigError if a bucket is given."""
        refuse_bucket("from_s3_bucket", from_s3_bucket)
        await self.fork(model, from_model, from_project=from_project, not_after_step=not_after_step)

    async def _experimental_pull_from_s3(self, model: TrainableSpec, *_: Any, **__: Any) -> None:
        """Nothing; a warning says so."""
        logger.warning("_experimental_pull_from_s3 of %s does nothing: %s", model.name, _NO_BUCKET)

    async def _experimental_push_to_s3(self, model: TrainableSpec, *_: Any, **__: Any) -> None:
        """Nothing; a warning says so."""
        logger.warning("_experimental_push_to_s3 of %s does nothing: %s", model.name, _NO_BUCKET)

    async def _experimental_pull_model_checkpoint(self, model: TrainableSpec, **_: Any) -> str:
        """Raises ConfigError, as the weights are not on this machine."""
        raise ConfigError(
            f"_experimental_pull_model_checkpoint of {model.name} cannot act: its checkpoints lie where its backend "
            "is; a result's checkpoint_path says where, and any tool copies the folder"
        )

    async def _experimental_deploy(self, *_: Any, **__: Any) -> None:
        """Raises ConfigError, as deployment is not supported."""
        raise ConfigError(
            "_experimental_deploy cannot act: a checkpoint is a folder that vLLM and PEFT load, and deploying it is "
            "yours; `await model.get_step()` and the result's checkpoint_path say which"
        )

    @abstractmethod
    async def close(self) -> None:
        """Release all resources. Closing twice is allowed."""


def refuse_bucket(argument: str, bucket: str | None) -> None:
    """Raises ConfigError if a bucket is given."""
    if bucket is not None:
        raise ConfigError(f"{argument}={bucket!r} cannot act: {_NO_BUCKET}")


def end_if_trained(name: str, step: int) -> None:
    """End the script if the number of steps given by `ludus run --set total_train_steps=…` is reached."""
    enough = overrides.count("total_train_steps")
    if enough is not None and step >= enough:
        logger.warning("total_train_steps=%d: %s has step %d, and the script ends here", enough, name, step)
        raise SystemExit(0)


def as_group(given: Grouped) -> TrajectoryGroup:
    """The group, or a group of these trajectories and exceptions."""
    return given if isinstance(given, TrajectoryGroup) else TrajectoryGroup(given)


def _ignore(_: TrainProgress) -> None: ...
