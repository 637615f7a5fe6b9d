"""The trackers that a run's settings ask for."""

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
"""What is imported, where it is not called as the tracker is."""


def tracker_class(name: TrackerName) -> Callable[[TrackedRun, str | None], Tracker]:
    """What opens a run in the tracker."""
    found: Callable[[TrackedRun, str | None], Tracker] = getattr(
        import_module(f"ludus.runs.trackers.{name}"), _CLASSES[name]
    )
    return found


def check_trackers(settings: TrackersSettings) -> None:
    """Raises ConfigError if what one of them needs is not installed."""
    for name in settings.to:
        if not _is_installed(_MODULES.get(name, name)):
            raise ConfigError(f"trackers.to={name} needs its client: pip install 'ludus[{name}]'")


@contextmanager
def open_trackers(settings: TrackersSettings, name: str, folder: Path) -> Iterator[tuple[TrackerProcess, ...]]:
    """Until the block ends, what is written into a run's folder is told; at its end, all that is left.

    name: of the run.
    """
    check_trackers(settings)
    with ExitStack() as stack:
        opened = tuple(stack.enter_context(TrackerProcess(each, name, folder, settings)) for each in settings.to)
        try:
            yield opened
        finally:
            for each in opened:  # all at once, before the first is waited for
                each.end()


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of what it is below
        return False
