"""`Model` and `TrainableModel`: what a user's rollouts ask, log and train, whatever serves and trains it.

Knows: clients of OpenAI's SDK, log files, backends.  Knows not: weights, tokens.
Invariants: a client asks the newest weights, also when it was made before them; a rollout asks in a session of its own,
whoever made its client.
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

TIMEOUT_S = 1200.0  # of one answer: what a long one takes on a laptop
CONNECT_TIMEOUT_S = 5.0
_TOLD = Told("art", "model.Model")


@with_members("art", "model.Model")
class Model(pydantic.BaseModel, Generic[ConfigT]):
    """A model that is asked and logged, and not trained: an endpoint by its name, for comparison."""

    model_config = pydantic.ConfigDict(extra="forbid", protected_namespaces=(), arbitrary_types_allowed=True)

    trainable: ClassVar[bool] = False
    name: str = pydantic.Field(min_length=1, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    project: str = pydantic.Field(min_length=1, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    config: ConfigT | None = None
    """The user's own; nothing here reads it."""
    inference_base_url: str | None = None
    """None: OpenAI's."""
    inference_api_key: str | None = None
    """None: that of the environment variable OPENAI_API_KEY."""
    inference_model_name: str | None = None
    """None: its name."""
    base_path: str = DEFAULT_PATH
    """Where logs and state lie; a project is a folder below."""
    id: str | None = None
    run_id: str | None = None
    entity: str | None = None
    report_metrics: list[str] | None = None
    """These four are kept with the model; nothing here reads them."""
    _backend: Backend | None = pydantic.PrivateAttr(default=None)
    _without_endpoint: ClassVar[tuple[str | None, str | None]] = (None, None)
    """Base URL and key of a client where none are known. None: what the SDK itself takes."""
    _transports: dict[str, ModelTransport] = pydantic.PrivateAttr(default_factory=dict)

    @pydantic.model_validator(mode="before")
    @classmethod
    def _name_ignored(cls, given: Any) -> Any:
        if isinstance(given, Mapping):
            _TOLD.look({name: value for name, value in given.items() if value is not None})
        return given

    @property
    def log_files(self) -> LogFiles:
        """The files that `log` and the state are written to."""
        return LogFiles(Path(self.base_path) / self.project / "models" / self.name)

    def openai_client(self, **options: Any) -> Any:
        """An `openai.AsyncOpenAI` for this model. options: its other arguments.

        What it is asked and answers is captured where a trajectory is being captured.
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
        """An AsyncClient, of the module that OpenAI's SDK takes, whose requests go to the model."""
        name = sdk_http_module()
        http = importlib.import_module(name)
        if name not in self._transports:
            self._transports[name] = ModelTransport(http, self._prepare)
        return http.AsyncClient(
            transport=self._transports[name], timeout=http.Timeout(TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
        )

    def get_inference_name(self, step: int | None = None) -> str:
        """What `model=` of a request is. step: only None is possible here: this model has no steps."""
        if step is not None:
            raise UserError(f"{self.name!r} is not trained, so it has no step {step}; leave step out")
        return self.inference_model_name or self.name

    def litellm_completion_params(self, step: int | None = None) -> dict[str, Any]:
        """Arguments for `litellm.acompletion` beside the messages."""
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
        """Write groups, or bare trajectories and exceptions, and their means to the log files; the means.

        metrics: written beside them.  step: None: the model's own.
        """
        at = await self.get_step() if step is None else step
        return self.log_files.write(as_groups(trajectories), split=split, step=at, metrics=metrics or {})

    def backend(self) -> Backend:
        """What it was registered with, which it has no use for. Raises UserError before."""
        if self._backend is None:
            raise UserError(f"{self.name!r} has no backend; call `await model.register(backend)` first")
        return self._backend

    async def register(self, backend: Backend) -> None:
        """Nothing but that: it is asked where it is, and logged here."""
        self._backend = backend

    def safe_model_dump(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """`model_dump` without `config`, which need not be JSON."""
        return {**self.model_dump(*args, **kwargs), "config": None}

    async def get_step(self) -> int:
        """Steps that the model has been trained for."""
        return 0

    def read_state(self) -> dict[str, Any] | None:
        """What the user's loop has kept, such as a position in its data. None: nothing."""
        path = self.log_files.folder / "state.json"
        return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None

    def merge_state(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """The state with these keys replaced, in mappings below too."""
        found = merged(self.read_state() or {}, state)
        self.overwrite_state(found)
        return found

    def overwrite_state(self, state: Mapping[str, Any]) -> None:
        """Replace the state as a whole; it is written whole or not at all."""
        folder = self.log_files.folder
        folder.mkdir(parents=True, exist_ok=True)
        draft = folder / "state.json.part"
        draft.write_text(json.dumps(dict(state), indent=2) + "\n", encoding="utf-8")
        draft.replace(folder / "state.json")

    def write_state(self, state: Mapping[str, Any]) -> None:
        """`overwrite_state`, by its older name."""
        self.overwrite_state(state)

    async def _prepare(self) -> InferenceEndpoint | None:
        """Where it is now. None: at its own base URL."""
        return None


@with_members("art", "model.TrainableModel")
class TrainableModel(Model[ConfigT]):
    """A model that is trained from what its rollouts do."""

    trainable: ClassVar[bool] = True
    base_model: str = pydantic.Field(min_length=1)
    """Name of an embedded model, a folder, or a hub id."""
    _without_endpoint: ClassVar[tuple[str | None, str | None]] = (PLACEHOLDER, "unregistered")
    _internal_config: Mapping[str, Any] | None = pydantic.PrivateAttr(default=None)
    """Keys of Ludus's configuration in which this model's differs. None: in none. It is read at registration."""
    _inference: InferenceEndpoint | None = pydantic.PrivateAttr(default=None)

    def __init__(self, *, _internal_config: Mapping[str, Any] | None = None, **fields: Any) -> None:
        """_internal_config: keys of Ludus's configuration in which this model's differs, such as
        {"model": {"lora": None}}; docs/configuration.md lists them."""
        super().__init__(**fields)
        self._internal_config = _internal_config

    def __getattribute__(self, name: str) -> Any:
        # A rollout may make a client of its own, of the model's address and key: the key names the rollout.
        if name == "inference_api_key" and (endpoint := self._inference) is not None:
            return endpoint.key()
        return super().__getattribute__(name)

    @property
    def internal_config(self) -> Mapping[str, Any]:
        return acting_keys(self._internal_config or {})

    def backend(self) -> Backend:
        """What trains it; a `LocalBackend` in `base_path` where it was not registered."""
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
        """Have `backend` serve and train the model; returns when it answers. Doing it again is allowed.

        Raises UserError if another backend has it already.
        """
        if self._backend is not None and self._backend is not backend:
            raise UserError(f"{self.name!r} is registered with {self._backend!r}; make another model for {backend!r}")
        await backend.register(self)
        self._backend = backend
        await self._prepare()

    def get_inference_name(self, step: int | None = None) -> str:
        """What `model=` of a request is. step: that step's weights, if they were saved. None: the newest."""
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
        """One step on the groups, logged as split `train`. options: as those of a backend's `train`.

        When it returns, every client of the model asks the new weights.
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
        """Supervised training on every assistant message of the trajectories; one step of the model."""
        del _config, verbose
        given = list(trajectories)
        if not given:
            raise UserError("there are no trajectories to train on")
        await self._prepare()
        result = await self.backend().train_sft(self, given, config, on_progress=on_progress)
        await self.log(metrics={f"sft/{name}": value for name, value in result.metrics.items()}, step=result.step)
        return result

    async def delete_checkpoints(self, best_checkpoint_metric: str = "val/reward") -> None:
        """Delete all checkpoints but the newest and the one with the largest value of a logged metric."""
        best = self.log_files.best_step(best_checkpoint_metric)
        await self.backend().delete_checkpoints(self, () if best is None else (best,))

    async def _prepare(self) -> InferenceEndpoint:
        if self._inference is None:
            self._inference = await self.backend().prepare(self)
            self.inference_base_url = self._inference.base_url
            self.inference_api_key = self._inference.key()
            self.inference_model_name = self._inference.inference_name
        return self._inference
