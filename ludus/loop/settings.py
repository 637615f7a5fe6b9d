"""Settings of the loop: the data, when to evaluate, save and stop."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Self

import pydantic

from ludus.errors import ConfigError
from ludus.rollout.settings import CurriculumSettings
from ludus.settings import Settings

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class SourceSettings(Settings):
    """One dataset of several, and the agent that plays its rows."""

    path: str | None = None
    """A .parquet, .jsonl, .json or .csv file, or 'pkg.mod:function' that returns rows. None: they are passed in
    Python, in a mapping by the names of the sources."""
    workflow: str | None = None
    """The agent that plays these rows. None: the run's."""
    workflow_kwargs: dict[str, Any] = pydantic.Field(default_factory=dict)
    """Arguments of this dataset's agent. Without `workflow`, the run's agent is made once more with these."""

    @property
    def has_own_agent(self) -> bool:
        return self.workflow is not None or bool(self.workflow_kwargs)


class TrainSourceSettings(SourceSettings):
    """One of several datasets that are trained on."""

    weight: float | None = pydantic.Field(default=None, gt=0, allow_inf_nan=False)
    """Its share of the groups relative to the other datasets'. None (then for all of them): its number of rows."""
    loss_weight: float = pydantic.Field(default=1.0, ge=0, allow_inf_nan=False)
    """Factor on the loss of its tokens."""


class TrainDatasetSettings(Settings):
    """Where training rows come from, and how many groups make a step."""

    path: str | None = None
    """A .parquet, .jsonl, .json or .csv file, or 'pkg.mod:function' that returns rows. None: they are passed in
    Python."""
    mix: dict[str, TrainSourceSettings] = pydantic.Field(default_factory=dict)
    """Several datasets by name, in place of `path`."""
    batch_size: int = pydantic.Field(default=8, ge=1)
    """Groups in a step."""
    shuffle: bool = True
    curriculum: CurriculumSettings = CurriculumSettings()
    demonstrations: str | None = None
    """Column of demonstrations: an expert's conversations, which join the group of their row. None: there are none."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        _check_mix(self.path, self.mix)
        given = [name for name, source in self.mix.items() if source.weight is not None]
        if given and len(given) < len(self.mix):
            left = ", ".join(name for name in self.mix if name not in given)
            raise ConfigError(f"mix has a weight for {', '.join(given)} and none for {left}; give all of them, or none")
        return self


class ValidDatasetSettings(Settings):
    """Where held-out rows come from."""

    path: str | None = None
    """A .parquet, .jsonl, .json or .csv file, or 'pkg.mod:function' that returns rows. None: they are passed in
    Python."""
    mix: dict[str, SourceSettings] = pydantic.Field(default_factory=dict)
    """Several datasets by name, in place of `path`."""
    max_rows: int | None = pydantic.Field(default=None, ge=1)
    """Play only so many of the first rows of each dataset. None: all."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        _check_mix(self.path, self.mix)
        return self


def _check_mix(path: str | None, mix: Mapping[str, object]) -> None:
    if path is not None and mix:
        raise ConfigError(f"path={path!r} and mix both say where rows come from; put the path into mix, or remove one")
    for name in mix:
        if not _NAME.fullmatch(name):
            raise ConfigError(f"mix: {name!r} must be a name of letters, digits, '.', '_' and '-'")


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
    """When checkpoints are saved. One is always saved when the run ends."""

    every_steps: int | None = pydantic.Field(default=None, ge=1)
    """None: steps are not counted."""
    every_seconds: float | None = pydantic.Field(default=600.0, gt=0)
    """Save after a step if the last checkpoint is so old. None: time does not count."""
    keep: int = pydantic.Field(default=2, ge=1)
    """How many of the latest checkpoints stay on disk."""
