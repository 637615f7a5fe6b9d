"""Settings of the trainer, its optimizer and the critic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, Self

import pydantic
from pydantic import Field

from ludus.errors import ConfigError
from ludus.settings import Idle, Settings

RoundingName = Literal["dither", "nearest"]


class OptimizerSettings(Settings):
    """AdamW on float32 master weights, with a learning rate that may warm up and decay."""

    lr: float = Field(default=1e-5, gt=0)
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    """Applied to matrices only; norms and biases are never decayed."""
    moments: Literal["fp32", "bf16"] = "fp32"
    """Type of AdamW's two moments; bf16 takes half the memory, and stochastic rounding lets small changes add up."""
    max_grad_norm: float | None = Field(default=1.0, gt=0)
    """None: gradients are not clipped."""
    warmup_steps: int = Field(default=0, ge=0)
    """Training steps of linear warm-up. As in verl and AReaL, all optimizer steps on a batch have one learning rate."""
    warmup_from_zero: bool = False
    """The warm-up's rates are 0, 1/n, … of `lr`, as in transformers, TRL, verl and AReaL, where the first step trains
    nothing. False: 1/n, 2/n, …, 1."""
    decay: Literal["constant", "linear", "cosine"] = "constant"
    total_steps: int | None = Field(default=None, ge=1)
    """Training steps after which a decaying learning rate reaches 0; for the policy, steps in which only the critic is
    trained do not count. None: the steps of the run."""

    def idle(self) -> Iterator[Idle]:
        if self.decay == "constant" and self.total_steps is not None:
            yield Idle("total_steps", "decay is 'constant'")
        if self.warmup_steps == 0 and self.is_set("warmup_from_zero"):
            yield Idle("warmup_from_zero", "warmup_steps is 0")


class CriticSettings(Settings):
    """The critic, for algorithms that need values (`algorithm.name: ppo`)."""

    model: Literal["separate", "shared"] = "separate"
    """separate: a model of its own. shared: a head on the policy's last hidden states, trained by the policy's
    optimizer; its loss changes the policy's weights too."""
    loss_weight: float = Field(default=0.5, ge=0)
    """Weight of the value loss relative to the policy's, for a shared model."""
    path: str | None = None
    """As `model.path`; if the folder has a `score.weight`, that is the head. None: the policy's initial weights."""
    optimizer: OptimizerSettings = OptimizerSettings()
    clip_range: float | None = Field(default=0.5, gt=0)
    """How far a value may move from the one measured before the batch. None: not limited."""
    warmup_steps: int = Field(default=0, ge=0)
    """Batches at the beginning that train only the critic."""
    epochs: int | None = Field(default=None, ge=1)
    """How many times the critic is trained on all minibatches of a batch. None: `algorithm.epochs`."""

    def idle(self) -> Iterator[Idle]:
        names = ("path", "optimizer", "warmup_steps", "epochs") if self.model == "shared" else ("loss_weight",)
        yield from (Idle(name, f"critic.model is {self.model!r}") for name in names if self.is_set(name))


class TrainerSettings(Settings):
    """How batches are trained; the loss is in `algorithm`."""

    ranks: int = Field(default=1, ge=1)
    """Processes that share the work and the weights, the head included; `scheduler.trainer` says what each of the
    others gets."""
    tensor_parallel: int = Field(default=1, ge=1)
    """Ranks that compute each layer together, each with its heads and its columns of the MLP."""
    context_parallel: int = Field(default=1, ge=1)
    """Ranks over which the tokens of each row are cut; attention trades them for heads."""
    row_tokens: int = Field(default=1024, ge=1)
    """Tokens of one micro-batch; memory for activations grows with it."""
    optimizer: OptimizerSettings = OptimizerSettings()
    publish_rounding: RoundingName = "dither"
    """How fp32 master weights are rounded to the bf16 weights that sample: dithered, which is right on average, or to
    nearest, with which small changes have no effect until they have added up."""
    activation_checkpointing: bool = False
    """Recompute each layer in the backward pass: much less memory, about a third more time."""
    offload: Literal["none", "optimizer"] = "none"
    """optimizer: on a card, masters and moments are in the machine's memory, and pass through the card piece by piece
    in every step: 4 bytes a trained weight are left of 12 or 16. Bits are the same."""
    record_tokens: bool = True
    """Keep in the run's folder what the loss used of every trained token: some 20 bytes per token."""

    @pydantic.model_validator(mode="after")
    def _check_ranks(self) -> Self:
        """The ranks of a row are some of all ranks."""
        of_row = self.tensor_parallel * self.context_parallel
        if self.ranks % of_row:
            raise ConfigError(
                f"trainer.ranks={self.ranks} must be a multiple of {of_row}, the ranks that compute one row "
                "(trainer.tensor_parallel times trainer.context_parallel); set trainer.ranks="
                f"{-(-self.ranks // of_row) * of_row}"
            )
        return self
