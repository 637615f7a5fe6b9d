"""How episodes leave a run as traces, for a viewer of somebody else's."""

from __future__ import annotations

from typing import Literal, Self

import pydantic

from ludus.errors import ConfigError
from ludus.settings import Tagged


class TraceSettings(Tagged):
    """Which viewer gets every finished episode, besides the run's own folder; keys as verl names them."""

    tag = "backend"
    backend: str


class NoTraceSettings(TraceSettings):
    """None."""

    backend: Literal["none"] = "none"


class MlflowSettings(TraceSettings):
    """MLflow's."""

    backend: Literal["mlflow"] = "mlflow"
    tracking_uri: str = "sqlite:////tmp/mlruns.db"
    """MLflow's database or server: `sqlite:///…`, another database, or `http://…`."""
    project_name: str = pydantic.Field(default="ludus", min_length=1)
    """MLflow's experiment, in which the run has the run's `name`."""
    max_samples_per_step_per_worker: int | None = pydantic.Field(default=None, ge=1)
    """Most episodes of one step that are traced, the first that end. None: all."""
    patience_s: float = pydantic.Field(default=60.0, gt=0)
    """How long a run that ends waits for the next traces to be written."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        if "://" not in self.tracking_uri:
            raise ConfigError(
                f"trace.tracking_uri={self.tracking_uri!r} is no address; allowed: 'sqlite:///relative.db', "
                "'sqlite:////absolute.db', another database, or 'http://host:port' of an MLflow server"
            )
        return self


TRACES = {"none": NoTraceSettings, "mlflow": MlflowSettings}
