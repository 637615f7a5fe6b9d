"""The names of `art.utils`."""

from ludus.compat.art.concurrency import limit_concurrency
from ludus.compat.art.dataset import DatasetBatch, iterate_dataset
from ludus.compat.art.retrying import retry

__all__ = ["DatasetBatch", "iterate_dataset", "limit_concurrency", "retry"]
