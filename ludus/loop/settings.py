"""Settings of the loop: the data, the arithmetic of credit, when to evaluate, save and stop."""

from __future__ import annotations

from typing import Literal, Self

import pydantic

from ludus.errors import ConfigError
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


class AlgorithmSettings(Settings):
    """From rewards to advantages to the weight of a token. The defaults are GRPO with token-mean."""

    baseline: Literal["mean", "leave_one_out", "none"] = "mean"
    """leave_one_out is RLOO's; none is plain REINFORCE."""
    scale: Literal["std", "none"] = "std"
    """none, with normaliser=constant, is Dr.GRPO."""
    normaliser: Literal["token", "episode", "constant"] = "token"
    """Over what the loss is averaged: all trained tokens of a step, each episode's own, or a constant length."""
    constant_tokens: int | None = pydantic.Field(default=None, ge=1)
    """The length that normaliser=constant divides by."""
    max_sequence_tokens: int | None = pydantic.Field(default=None, ge=2)
    """Tokens further down a conversation than this, prompts counted, are not trained. None: all are."""
    dynamic_sampling: bool = False
    """DAPO: a group whose rewards all agree is replaced by another row's group."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        if self.normaliser == "constant" and self.constant_tokens is None:
            raise ConfigError("normaliser='constant' needs constant_tokens, the length to divide by")
        if self.normaliser != "constant" and self.is_set("constant_tokens"):
            raise ConfigError(f"constant_tokens={self.constant_tokens} cannot act: normaliser is {self.normaliser!r}")
        return self


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
    """None: only when the run ends."""
    keep: int = pydantic.Field(default=2, ge=1)
    """The latest checkpoints that stay on disk."""
