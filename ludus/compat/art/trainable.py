"""`Model` and `TrainableModel`: the models that a user's rollouts ask, log and train, with any backend.

Knows: clients of OpenAI's SDK, log files, backends.  Knows not: weights, tokens.
Invariants: a client always uses the newest weights, even if it was made before them; every rollout has its own session,
wherever its client was made.
"""

from __future__ import annotations

import importlib
import json
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import pydantic

from ludus.compat import overrides
from ludus.compat.art.backends import (
    Backend,
    Grouped,
    InferenceEndpoint,
    OnProgress,
    TrainConfig,
    TrainResult,
    TrainSFTConfig,
    as_group,
    end_if_trained,
)
from ludus.compat.art.keys import acting_keys
from ludus.compat.art.local_backend import DEFAULT_PATH, LocalBackend
from ludus.compat.art.log_files import LogFiles, Logged, as_groups
from ludus.compat.art.trajectory import Trajectory
from ludus.compat.art.transport import PLACEHOLDER, ModelTransport
from ludus.compat.members import Told, takes, with_members
from ludus.errors import UserError
from ludus.gateway.transport import sdk_http_module
from ludus.settings import merged

logger = logging.getLogger(__name__)
ConfigT = TypeVar("ConfigT")

TIMEOUT_S = 1200.0  # for one answer: enough for a long one on a laptop
CONNECT_TIMEOUT_S = 5.0
_TOLD = Told("art", "model.Model")


@with_members("art", "model.Model")
class Model(pydantic.BaseModel, Generic[ConfigT]):
    """A model that is asked and logged but not trained: a named endpoint, for comparisons."""

    model_config = pydantic.ConfigDict(extra="forbid", protected_namespaces=(), arbitrary_types_allowed=True)

    trainable: ClassVar[bool] = False
    name: str = pydantic.Field(min_length=1, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    project: str = pydantic.Field(min_length=1, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    config: ConfigT | None = None
    """The user's own data; not used here."""
    inference_base_url: str | None = None
    """None: OpenAI's."""
    inference_api_key: str | None = None
    """None: from the environment variable OPENAI_API_KEY."""
    inference_model_name: str | None = None
    """None: `name`."""
    base_path: str = DEFAULT_PATH
    """Folder of logs and state, with a subfolder for each project."""
    id: str | None = None
    run_id: str | None = None
    entity: str | None = None
    report_metrics: list[str] | None = None
    """This field and the three before it are stored with the model, but not used here."""
    _backend: Backend | None = pydantic.PrivateAttr(default=None)
    _without_endpoint: ClassVar[tuple[str | None, str | None]] = (None, None)
    """Base URL and key of clients of a model without an endpoint. None: the SDK's defaults."""
    _transports: dict[str, ModelTransport] = pydantic.PrivateAttr(default_factory=dict)

    @pydantic.model_validator(mode="before")
    @classmethod
    def _name_ignored(cls, given: Any) -> Any:
        if isinstance(given, Mapping):
            _TOLD.look({name: value for name, value in given.items() if value is not None})
            # ART writes it with a model; the class says it here
            return {name: value for name, value in given.items() if name != "trainable" or value != cls.trainable}
        return given

    @property
    def log_files(self) -> LogFiles:
        """The files that `log` and the state are written to."""
        return LogFiles(Path(self.base_path) / self.project / "models" / self.name)

    def openai_client(self, **options: Any) -> Any:
        """An `openai.AsyncOpenAI` for this model. options: its other arguments.

        Its requests and answers are captured if a trajectory is being captured.
        Raises UserError if the SDK is not installed.
        """
        try:
            sdk = importlib.import_module("openai")
        except ModuleNotFoundError:
            raise UserError("a client of the model needs OpenAI's SDK: pip install openai") from None
        address, key = self._without_endpoint
        given = overrides.address(self.inference_model_name, self.name)
        known = {"base_url": given or self.inference_base_url or address, "api_key": self.inference_api_key or key}
        return sdk.AsyncOpenAI(**{"http_client": self.http_client(), **known, **options})

    def http_client(self) -> Any:
        """An AsyncClient (of httpx or httpx2, as required by OpenAI's SDK) whose requests go to the model."""
        name = sdk_http_module()
        http = importlib.import_module(name)
        if name not in self._transports:
            self._transports[name] = ModelTransport(http, self._prepare)
        return http.AsyncClient(
            transport=self._transports[name], timeout=http.Timeout(TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
        )

    def get_inference_name(self, step: int | None = None) -> str:
        """The value of `model=` in requests. step: must be None, as this model has no steps."""
        if step is not None:
            raise UserError(f"{self.name!r} is not trained, so it has no step {step}; leave step out")
        return self.inference_model_name or self.name

    def litellm_completion_params(self, step: int | None = None) -> dict[str, Any]:
        """Arguments of `litellm.acompletion` in addition to the messages."""
        return {
            "model": f"{'hosted_vllm/' if self.trainable else ''}{self.get_inference_name(step)}",
            "base_url": self.inference_base_url,
            "api_key": self.inference_api_key,
            "temperature": 1,
        }

    async def log(
        self,
        trajectories: Logged | None = None,
        split: str = "val",
        *,
        metrics: Mapping[str, float] | None = None,
        step: int | None = None,
    ) -> dict[str, float]:
        """Write groups, or single trajectories and exceptions, and their means to the log files; returns the means.

        metrics: further metrics to write.  step: None: the model's current step.
        """
        at = await self.get_step() if step is None else step
        return self.log_files.write(as_groups(trajectories), split=split, step=at, metrics=metrics or {})

    def backend(self) -> Backend:
        """The backend that it was registered with, which is not used. Raises UserError if it was not registered."""
        if self._backend is None:
            raise UserError(f"{self.name!r} has no backend; call `await model.register(backend)` first")
        return self._backend

    async def register(self, backend: Backend) -> None:
        """Only stores the backend: the model is asked at its own URL, and logged here."""
        self._backend = backend

    def safe_model_dump(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """`model_dump` without `config`, which need not be JSON."""
        return {**self.model_dump(*args, **kwargs), "config": None}

    async def get_step(self) -> int:
        """Steps that the model has been trained for."""
        return 0

    def read_state(self) -> dict[str, Any] | None:
        """The state saved by the user's loop, such as a position in its data. None: there is none."""
        path = self.log_files.folder / "state.json"
        return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None

    def merge_state(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Update the state recursively with these keys, and return it."""
        found = merged(self.read_state() or {}, state)
        self.overwrite_state(found)
        return found

    def overwrite_state(self, state: Mapping[str, Any]) -> None:
        """Replace the whole state atomically."""
        folder = self.log_files.folder
        folder.mkdir(parents=True, exist_ok=True)
        draft = folder / "state.json.part"
        draft.write_text(json.dumps(dict(state), indent=2) + "\n", encoding="utf-8")
        draft.replace(folder / "state.json")

    def write_state(self, state: Mapping[str, Any]) -> None:
        """`overwrite_state` under its former name."""
        self.overwrite_state(state)

    async def _prepare(self) -> InferenceEndpoint | None:
        """The current endpoint. None: its own base URL."""
        return None


@with_members("art", "model.TrainableModel")
class TrainableModel(Model[ConfigT]):
    """A model that is trained on the trajectories of its rollouts."""

    trainable: ClassVar[bool] = True
    base_model: str = pydantic.Field(min_length=1)
    """Name of an embedded model, a folder, or a hub id."""
    _without_endpoint: ClassVar[tuple[str | None, str | None]] = (PLACEHOLDER, "unregistered")
    _internal_config: Mapping[str, Any] | None = pydantic.PrivateAttr(default=None)
    """Settings of Ludus that are specific to this model, read at registration. None: there are none."""
    _inference: InferenceEndpoint | None = pydantic.PrivateAttr(default=None)

    def __init__(self, *, _internal_config: Mapping[str, Any] | None = None, **fields: Any) -> None:
        """_internal_config: settings of Ludus that are specific to this model, such as {"model": {"lora": None}};
        docs/configuration.md lists them."""
        super().__init__(**fields)
        self._internal_config = _internal_config

    def __getattribute__(self, name: str) -> Any:
        # A rollout may make its own client from the model's URL and key, so the key identifies the rollout.
        if name == "inference_api_key" and (endpoint := self._inference) is not None:
            return endpoint.key()
        return super().__getattribute__(name)

    @property
    def internal_config(self) -> Mapping[str, Any]:
        return acting_keys(self._internal_config or {})

    def backend(self) -> Backend:
        """Its backend; a `LocalBackend` in `base_path` if it was not registered."""
        if self._backend is None:
            logger.warning(
                "%s was not registered: a LocalBackend in %r trains it in this process; call "
                "`await model.register(backend)` first for another one",
                self.name,
                self.base_path,
            )
            self._backend = LocalBackend(path=self.base_path)
        return self._backend

    @takes("art", "model.TrainableModel.register")
    async def register(self, backend: Backend, _openai_client_config: Mapping[str, Any] | None = None) -> None:
        """Let `backend` serve and train the model; returns when it is ready. Registering twice is allowed.

        Raises UserError if it is registered with another backend.
        """
        if self._backend is not None and self._backend is not backend:
            raise UserError(f"{self.name!r} is registered with {self._backend!r}; make another model for {backend!r}")
        await backend.register(self)
        self._backend = backend
        await self._prepare()

    def get_inference_name(self, step: int | None = None) -> str:
        """The value of `model=` in requests. step: use that step's weights, if they were saved. None: the newest."""
        name = self.inference_model_name or self.name
        return name if step is None else f"{name}@{step}"

    async def get_step(self) -> int:
        """Steps that the model has been trained for, restarts included."""
        return await self.backend().get_step(self)

    async def train(
        self,
        trajectory_groups: Iterable[Grouped],
        config: TrainConfig | None = None,
        *,
        on_progress: OnProgress | None = None,
        **options: Any,
    ) -> TrainResult:
        """Train one step on the groups, which are logged as split `train`. options: as for a backend's `train`.

        When it returns, every client of the model uses the new weights.
        """
        groups = [as_group(each) for each in trajectory_groups if each is not None]
        await self._prepare()
        result = await self.backend().train(self, groups, config, on_progress=on_progress, **options)
        await self.log(groups, split="train", metrics=result.metrics, step=result.step)
        end_if_trained(self.name, result.step)
        return result

    @takes("art", "model.TrainableModel.train_sft")
    async def train_sft(
        self,
        trajectories: Iterable[Trajectory],
        config: TrainSFTConfig | None = None,
        _config: Mapping[str, Any] | None = None,
        verbose: bool = False,
        *,
        on_progress: OnProgress | None = None,
    ) -> TrainResult:
        """Train on every assistant message of the trajectories with a supervised loss; counts as one step."""
        del _config, verbose
        given = list(trajectories)
        if not given:
            raise UserError("there are no trajectories to train on")
        await self._prepare()
        result = await self.backend().train_sft(self, given, config, on_progress=on_progress)
        await self.log(metrics={f"sft/{name}": value for name, value in result.metrics.items()}, step=result.step)
        return result

    async def delete_checkpoints(self, best_checkpoint_metric: str = "val/reward") -> None:
        """Delete all checkpoints except the newest and the one with the largest value of a logged metric."""
        best = self.log_files.best_step(best_checkpoint_metric)
        await self.backend().delete_checkpoints(self, () if best is None else (best,))

    async def _prepare(self) -> InferenceEndpoint:
        if self._inference is None:
            self._inference = await self.backend().prepare(self)
            self.inference_base_url = self._inference.base_url
            self.inference_api_key = self._inference.key()
            self.inference_model_name = self._inference.inference_name
        return self._inference
