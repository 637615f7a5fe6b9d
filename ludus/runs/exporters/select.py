"""The exporter that a run's settings ask for."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec

from ludus.errors import ConfigError
from ludus.runs.exporters.background import BackgroundExporter
from ludus.runs.exporters.base import Exporter, NoExporter
from ludus.runs.exporters.mlflow import open_writer
from ludus.runs.settings import MlflowSettings, TraceSettings


def open_exporter(settings: TraceSettings, run_name: str) -> Exporter:
    """Use it as a context manager. Raises ConfigError if what it needs is not installed."""
    if not isinstance(settings, MlflowSettings):
        return NoExporter()
    if find_spec("mlflow") is None:
        raise ConfigError("trace.backend='mlflow' needs MLflow: pip install 'ludus[mlflow]'")
    factory = partial(open_writer, settings.tracking_uri, settings.project_name, run_name)
    most, patience_s = settings.max_samples_per_step_per_worker, settings.patience_s
    return BackgroundExporter(factory, name="mlflow", max_samples_per_step=most, patience_s=patience_s)
