"""Settings of the loop: the data, when to evaluate, save and stop."""

from __future__ import annotations

import pydantic

from ludus.settings import Settings


class TrainDatasetSettings(Settings):
    """Where training rows come from, and how many groups make a step."""

    path: str | None = None
    """A .parquet, .jsonl, .json or .csv file, or 'pkg.mod:function' that returns rows. None: they are passed in
    Python."""
    batch_size: int = pydantic.Field(default=8, ge=1)
    """Groups of one step."""
    shuffle: bool = True


class ValidDatasetSettings(Settings):
    """Where held-out rows come from."""

    path: str | None = None
    """A .parquet, .jsonl, .json or .csv file, or 'pkg.mod:function' that returns rows. None: they are passed in
    Python."""
    max_rows: int | None = pydantic.Field(default=None, ge=1)
    """Only the first rows. None: all."""


class EvalSettings(Settings):
    """When held-out rows are played."""

    every_steps: int | None = pydantic.Field(default=None, ge=1)
    """None: not between the first and the last step."""
    before: bool = False
    after: bool = False

    @property
    def is_asked(self) -> bool:
        return self.before or self.after or self.every_steps is not None


class CheckpointSettings(Settings):
    """When the run is saved so that it can be resumed; it always is when it ends."""

    every_steps: int | None = pydantic.Field(default=None, ge=1)
    """None: by time alone, and when the run ends."""
    every_seconds: float | None = pydantic.Field(default=600.0, gt=0)
    """After a step, once so long ago. None: by steps alone."""
    keep: int = pydantic.Field(default=2, ge=1)
    """The latest checkpoints that stay on disk."""
