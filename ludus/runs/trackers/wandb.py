"""Sends a run to Weights & Biases: metrics, configuration, a table of episodes, summary, and the report as a page.

Knows: wandb's runs and tables.  Knows not: spans, as traces belong to another product there.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from ludus.runs.metrics import Metrics
from ludus.runs.trackers.base import Report, TrackedEpisode, TrackedRun, Tracker, numbers_of
from ludus.runs.trackers.conversation import conversation
from ludus.runs.trackers.tree import cut, labels_of

_INIT_TIMEOUT_S = 60
_ID_CHARS = 16
_LABELS = ("split", "sample", "group", "episode", "outcome")
_COLUMNS = ("step", *_LABELS, "reason", "reward", "turns", "tokens", "asked", "conversation")


class WandbTracker(Tracker):
    most_per_step = 8

    def __init__(self, run: TrackedRun, run_id: str | None) -> None:
        # Data that is not synchronised yet, tables included, is kept in the run's folder.
        os.environ.setdefault("WANDB_DATA_DIR", str(run.folder / "trackers" / "wandb"))
        import wandb

        settings = run.settings.wandb
        self._html = wandb.Html
        self.run_id = run_id or uuid.uuid4().hex[:_ID_CHARS]
        self._name = run.name
        folder = run.folder / "trackers"
        self._run = wandb.init(
            project=run.settings.project,
            entity=settings.entity,
            name=run.name,
            id=self.run_id,
            # Data written offline is joined by the run's id when it is synchronised.
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
        # wandb's own steps must increase, and would refuse a step that is trained again after a resume.
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")
        # Each time only the new rows are logged; wandb shows all of them as one table.
        self._table = wandb.Table(columns=list(_COLUMNS), log_mode="INCREMENTAL")

    def add_metrics(self, step: int, metrics: Metrics) -> None:
        self._run.log({"step": step, **metrics})

    def add_episodes(self, episodes: Sequence[TrackedEpisode]) -> None:
        for one in episodes:
            self._table.add_data(*self._row(one))
        steps = [one.step for one in episodes if one.step is not None]
        self._run.log({"episodes": self._table, **({"step": steps[-1]} if steps else {})})

    def end(self, summary: Mapping[str, Any], report: Report) -> None:
        self._run.summary.update({f"summary/{name}": value for name, value in numbers_of(summary).items()})
        page = report.page()
        if page:
            self._run.log({"step": int(summary.get("steps", 0)), "report": self._html(page, inject=False)})

    def close(self) -> None:
        self._run.finish()

    def _row(self, one: TrackedEpisode) -> list[Any]:
        episode, turns = one.episode, one.episode.session.turns
        labels = labels_of(episode, self._name, one.step)
        said = "\n\n".join(f"{who}: {text}" for who, text in conversation(episode))
        return [
            one.step,
            *(labels[name] for name in _LABELS),
            cut(episode.outcome.reason),
            None if episode.reward is None else float(episode.reward),
            len(turns),
            episode.session.num_sampled_tokens,
            cut(turns[0].messages[-1].content or "") if turns and turns[0].messages else "",
            cut(said),
        ]
