"""External trackers that show a run, in addition to its own folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

import pydantic

from ludus.errors import ConfigError
from ludus.settings import Settings, did_you_mean

TrackerName = Literal["mlflow", "wandb", "tensorboard", "trackio", "otlp"]
TRACKERS: tuple[TrackerName, ...] = ("mlflow", "wandb", "tensorboard", "trackio", "otlp")


class MlflowSettings(Settings):
    """Settings of MLflow."""

    tracking_uri: str = "sqlite:////tmp/mlruns.db"
    """MLflow's database or server: `sqlite:///…`, another database, or `http://…`."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        if "://" not in self.tracking_uri:
            raise ConfigError(
                f"tracking_uri={self.tracking_uri!r} is no address; allowed: 'sqlite:///relative.db', "
                "'sqlite:////absolute.db', another database, or 'http://host:port' of an MLflow server"
            )
        return self


class WandbSettings(Settings):
    """Settings of Weights & Biases; for everything else it reads its own environment variables."""

    mode: Literal["online", "offline"] | None = None
    """offline: into the run's folder, for `wandb sync`. None: as WANDB_MODE says, or online."""
    entity: str | None = None
    """The user or team. None: the one who is logged in."""


class TensorboardSettings(Settings):
    """Settings of TensorBoard."""

    folder: str | None = None
    """The folder for `tensorboard --logdir`; the run has a folder with its name there. None: `tensorboard` in the
    run's folder."""


class TrackioSettings(Settings):
    """Settings of trackio."""

    space: str | None = None
    """The Hugging Face Space that shows it. None: on this machine, for `trackio show`."""


class OtlpSettings(Settings):
    """Settings of an OpenTelemetry collector that accepts OTLP over HTTP."""

    endpoint: str = "http://localhost:4318"
    """`/v1/traces` and `/v1/metrics` are below it."""
    headers: dict[str, str] = pydantic.Field(default_factory=dict)
    """Headers of every request, such as a key."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        if not self.endpoint.startswith(("http://", "https://")):
            raise ConfigError(
                f"endpoint={self.endpoint!r} is no address; allowed: 'http://host:4318' or 'https://host' of a "
                "collector that takes OTLP over HTTP"
            )
        return self


class TrackersSettings(Settings):
    """Settings of all trackers. A bare name, or a list of names, stands for `to`."""

    to: tuple[TrackerName, ...] = ()
    """Several at once are possible."""
    project: str = pydantic.Field(default="ludus", min_length=1)
    """The project or experiment there; the run has its `name` in it. For otlp, the service's name."""
    traces_per_step: int | None = pydantic.Field(default=None, ge=0)
    """Maximum episodes per step that trackers get, the first that end. None: all; for W&B and TensorBoard, which have
    no traces, 8."""
    share: float = pydantic.Field(default=0.02, gt=0, le=1)
    """Share of one core that a tracker may use during the run. Metrics are sent at once, episodes as far as the share
    allows; the rest is sent when the run has ended."""
    patience_s: float = pydantic.Field(default=60.0, gt=0)
    """How long a run that has ended waits for a tracker that makes no progress."""
    mlflow: MlflowSettings = MlflowSettings()
    wandb: WandbSettings = WandbSettings()
    tensorboard: TensorboardSettings = TensorboardSettings()
    trackio: TrackioSettings = TrackioSettings()
    otlp: OtlpSettings = OtlpSettings()

    @pydantic.model_validator(mode="before")
    @classmethod
    def _of_names(cls, given: Any) -> Any:
        if isinstance(given, Mapping):  # an override below a bare name calls it `kind`
            return {"to" if name == "kind" else name: value for name, value in given.items()}
        return {"to": given} if isinstance(given, (str, list, tuple)) else given

    @pydantic.field_validator("to", mode="before")
    @classmethod
    def _listed(cls, given: Any) -> Any:
        names = (given,) if isinstance(given, str) else tuple(given or ())
        for name in names:
            if name not in TRACKERS:
                hint = did_you_mean(str(name), TRACKERS, ";")
                raise ConfigError(f"{name!r} is no tracker{hint} there are {', '.join(TRACKERS)}")
        return tuple(dict.fromkeys(names))
