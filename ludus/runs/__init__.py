"""Watching a run: the run's folder, its report, its curves; spans, and episodes as traces elsewhere."""

from ludus.runs.spans import span
from ludus.runs.store import Credit, RunStore

__all__ = ["Credit", "RunStore", "span"]
