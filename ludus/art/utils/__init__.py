"""The names of `art.utils`."""

from ludus.agents.trajectory import DatasetBatch, iterate_dataset, limit_concurrency, retry

__all__ = ["DatasetBatch", "iterate_dataset", "limit_concurrency", "retry"]
