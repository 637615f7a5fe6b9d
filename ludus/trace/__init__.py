"""Watching a run: the run's folder, its report, its curves."""

from ludus.trace.store import Credit, RunStore

__all__ = ["Credit", "RunStore"]
