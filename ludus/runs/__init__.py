"""Watching a run: the run's folder, its report, its curves; spans, and episodes as traces elsewhere."""
