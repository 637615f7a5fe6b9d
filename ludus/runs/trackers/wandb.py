"""A run in Weights & Biases: metrics, configuration, summary and the report as a page.

Knows: wandb's runs.  Knows not: episodes: traces there are another product's.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ludus.runs.metrics import Metrics
from ludus.runs.trackers.base import TrackedEpisode, TrackedRun, Tracker, numbers_of

_INIT_TIMEOUT_S = 60
_ID_CHARS = 16


class WandbTracker(Tracker):
    takes_traces = False

    def __init__(self, run: TrackedRun, run_id: str | None) -> None:
        import wandb

        settings = run.settings.wandb
        self._html = wandb.Html
        self.run_id = run_id or uuid.uuid4().hex[:_ID_CHARS]
        folder = run.folder / "trackers"
        self._run = wandb.init(
            project=run.settings.project,
            entity=settings.entity,
            name=run.name,
            id=self.run_id,
            # What was written offline is joined by its id when it is synchronised.
            resume=None if settings.mode == "offline" else "allow",
            mode=settings.mode,
            dir=str(folder),
            config=dict(run.config),
            settings=wandb.Settings(
                console="off",
                disable_git=True,
                disable_code=True,
                init_timeout=_INIT_TIMEOUT_S,
                quiet=True,
                x_disable_stats=True,
            ),
        )
        # A step that is trained again after a resume is a point too, which wandb's own steps would refuse.
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")

    def add_metrics(self, step: int, metrics: Metrics) -> None:
        self._run.log({"step": step, **metrics})

    def add_episodes(self, episodes: Sequence[TrackedEpisode]) -> None:
        raise AssertionError("it has no traces")

    def end(self, summary: Mapping[str, Any], report: Callable[[], str]) -> None:
        self._run.summary.update({f"summary/{name}": value for name, value in numbers_of(summary).items()})
        page = report()
        if page:
            self._run.log({"step": int(summary.get("steps", 0)), "report": self._html(page, inject=False)})

    def close(self) -> None:
        self._run.finish()
