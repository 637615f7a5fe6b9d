"""Watching a run: the run's folder, its report, its curves; spans, and episodes as traces elsewhere."""

from ludus.trace.spans import span
from ludus.trace.store import Credit, RunStore

__all__ = ["Credit", "RunStore", "span"]
