"""Observers, to which the loop reports, and the summary that a run ends with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from typing import Any

from ludus.episodes.ledger import Ledger
from ludus.processes.checksums import Checksums
from ludus.runs.failures import Failure
from ludus.runs.metrics import Metrics


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The result of a run; also written as its `summary.json`."""

    run: str
    """The run's folder."""
    steps: int
    """Steps trained since the run's first start."""
    stopped_by: str
    """total_train_steps, total_train_epochs, total_train_seconds or interrupt."""
    train_seconds: float
    """Wall time of training since the run's first start, evaluations left out."""
    eval_seconds: float
    ledger: Ledger
    """Of all tokens sampled since the run's first start, except those that a crash lost after the last checkpoint."""
    reward: float | None = None
    """Mean over the last step's episodes. None: no step was trained."""
    success_before: float | None = None
    """On held-out rows, before training. None: not evaluated, or the agent reports no success."""
    success_after: float | None = None
    reward_before: float | None = None
    reward_after: float | None = None
    peak_rss_mb: float = 0.0
    model: str | None = None
    """Folder of the trained model. None: nothing was trained."""
    model_files: Checksums = field(default_factory=dict)
    """Of the files in that folder."""
    signal: int | None = None
    """The signal that interrupted the run. None: no signal did."""
    commit: str | None = None
    """Ludus's commit, followed by `+` if its files were changed. None: it was not run from a checkout."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The last step's."""
    failures: Sequence[Failure] = ()
    """Episodes that ended badly, by what went wrong, the most frequent first."""

    def to_json(self) -> dict[str, Any]:
        """Plain values, ready for `json.dumps`."""
        return asdict(self)

    def _repr_html_(self) -> str:
        held_out = {
            "success": _span("{:.1%}", self.success_before, self.success_after),
            "reward": _span("{:.3f}", self.reward_before, self.reward_after),
        }
        masked = (f"{count:,} {reason}" for reason, count in sorted(self.ledger.masked.items()))
        shares = " + ".join([f"{self.ledger.trained:,} trained", *masked])
        rows = [
            *((f"{name}, held out", said) for name, said in held_out.items() if said is not None),
            ("reward, last step", "–" if self.reward is None else f"{self.reward:.3f}"),
            ("tokens", f"{self.ledger.sampled:,} sampled = {shares}"),
            ("time", f"{self.train_seconds:,.0f} s of training, {self.eval_seconds:,.0f} s of evaluations"),
            ("model", self.model or "–"),
            *((f"{each.count} episodes {each.outcome}", each.reason) for each in self.failures),
        ]
        cells = "".join(f"<tr><th>{escape(name)}</th><td>{escape(said)}</td></tr>" for name, said in rows)
        said = f"<b>{escape(self.run)}</b>: {self.steps} steps, ended by {escape(self.stopped_by)}"
        return f"{said}<table>{cells}</table>"


def _span(form: str, before: float | None, after: float | None) -> str | None:
    """None: neither is known."""
    if before is None and after is None:
        return None
    return " → ".join("–" if value is None else form.format(value) for value in (before, after))


class Observer:
    """Base of observers; each method does nothing until it is overridden. Called on the loop's thread; an exception
    stops the run."""

    def on_phase(self, doing: str) -> None:
        """Something long begins, such as `loading smollm2-135m`. First called before anything is loaded."""

    def on_start(self, total_steps: int | None, total_seconds: float | None) -> None:
        """Training begins. total_steps, total_seconds: where it ends. None: there is no such limit."""

    def on_step(self, step: int, metrics: Metrics) -> None:
        """A step was trained, and its weights are the ones that sample now."""

    def on_eval(self, step: int, metrics: Metrics) -> None:
        """Held-out rows were played with the weights that `step` left behind."""

    def on_failures(self, failures: Sequence[Failure]) -> None:
        """Called after each step and evaluation if episodes of the run have ended badly so far: all of them, grouped by
        what went wrong, the most frequent first."""

    def on_end(self, summary: RunSummary) -> None:
        """The run is over, and saved."""


OnStep = Callable[[int, Metrics], object]
"""Called as `Observer.on_step` is."""


class Observers(Observer):
    """Several observers as one; each is told in turn."""

    def __init__(self, *each: Observer | OnStep) -> None:
        self._each = [one if isinstance(one, Observer) else _Stepwise(one) for one in each]

    def on_phase(self, doing: str) -> None:
        for each in self._each:
            each.on_phase(doing)

    def on_start(self, total_steps: int | None, total_seconds: float | None) -> None:
        for each in self._each:
            each.on_start(total_steps, total_seconds)

    def on_step(self, step: int, metrics: Metrics) -> None:
        for each in self._each:
            each.on_step(step, metrics)

    def on_eval(self, step: int, metrics: Metrics) -> None:
        for each in self._each:
            each.on_eval(step, metrics)

    def on_failures(self, failures: Sequence[Failure]) -> None:
        for each in self._each:
            each.on_failures(failures)

    def on_end(self, summary: RunSummary) -> None:
        for each in self._each:
            each.on_end(summary)


class _Stepwise(Observer):
    def __init__(self, on_step: OnStep) -> None:
        self._on_step = on_step

    def on_step(self, step: int, metrics: Metrics) -> None:
        self._on_step(step, metrics)
