"""Opens the trackers that are named in a run's settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from ludus.errors import ConfigError
from ludus.runs.settings import TrackerName, TrackersSettings
from ludus.runs.trackers.background import TrackerProcess
from ludus.runs.trackers.base import TrackedRun, Tracker

_CLASSES: dict[TrackerName, str] = {
    "mlflow": "MlflowTracker",
    "wandb": "WandbTracker",
    "tensorboard": "TensorboardTracker",
    "trackio": "TrackioTracker",
    "otlp": "OtlpTracker",
}
_MODULES: dict[TrackerName, str] = {"otlp": "opentelemetry.exporter.otlp.proto.http"}
"""Modules of the trackers' clients, where their name is not the tracker's."""


def tracker_class(name: TrackerName) -> Callable[[TrackedRun, str | None], Tracker]:
    """A function that opens a run in the tracker."""
    found: Callable[[TrackedRun, str | None], Tracker] = getattr(
        import_module(f"ludus.runs.trackers.{name}"), _CLASSES[name]
    )
    return found


def check_trackers(settings: TrackersSettings) -> None:
    """Raises ConfigError if the client of one of the trackers is not installed."""
    for name in settings.to:
        if not _is_installed(_MODULES.get(name, name)):
            raise ConfigError(f"trackers.to={name} needs its client: pip install 'ludus[{name}]'")


@contextmanager
def open_trackers(settings: TrackersSettings, name: str, folder: Path) -> Iterator[tuple[TrackerProcess, ...]]:
    """Send a run's folder to its trackers while the block runs, and the rest at its end.

    name: the run's.
    """
    check_trackers(settings)
    with ExitStack() as stack:
        opened = tuple(stack.enter_context(TrackerProcess(each, name, folder, settings)) for each in settings.to)
        try:
            yield opened
        finally:
            for each in opened:  # end all of them before waiting for the first
                each.end()


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of a parent package
        return False
