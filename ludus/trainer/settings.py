"""How the trainer moves the weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from ludus.settings import Idle, Settings

RoundingName = Literal["dither", "nearest"]


class OptimizerSettings(Settings):
    """AdamW on float32 master weights, with a learning rate that may warm up and decay."""

    lr: float = Field(default=1e-5, gt=0)
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    """Of matrices alone; norms and biases are never decayed."""
    moments: Literal["fp32", "bf16"] = "fp32"
    """Type of AdamW's two moments; bf16 takes half their memory and rounds by chance, so that small changes add up."""
    max_grad_norm: float | None = Field(default=1.0, gt=0)
    """None: gradients are not clipped."""
    warmup_steps: int = Field(default=0, ge=0)
    """Training steps, each of which has one learning rate however many minibatches it has; as in verl and AReaL."""
    decay: Literal["constant", "linear", "cosine"] = "constant"
    total_steps: int | None = Field(default=None, ge=1)
    """Training steps after which a decaying learning rate reaches 0; those in which a critic warms up and the policy
    waits are not among the policy's. None: those of the run."""

    def idle(self) -> Iterator[Idle]:
        if self.decay == "constant" and self.total_steps is not None:
            yield Idle("total_steps", "decay is 'constant'")


class CriticSettings(Settings):
    """The model that values are measured with, where advantages are made of them (`algorithm.name: ppo`)."""

    model: Literal["separate", "shared"] = "separate"
    """separate: one of its own. shared: a head on the policy's own last hidden states, which the policy's optimizer
    moves; what it learns moves the policy's weights too."""
    loss_weight: float = Field(default=0.5, ge=0)
    """What the value loss weighs beside the policy's, where the model is shared."""
    path: str | None = None
    """As `model.path`; a folder with a `score.weight` goes on with that head. None: what the policy begins as."""
    optimizer: OptimizerSettings = OptimizerSettings()
    clip_range: float | None = Field(default=0.5, gt=0)
    """How far a value may move from what was measured before the batch. None: as far as it likes."""
    warmup_steps: int = Field(default=0, ge=0)
    """Batches at the beginning that train the critic alone."""

    def idle(self) -> Iterator[Idle]:
        names = ("path", "optimizer", "warmup_steps") if self.model == "shared" else ("loss_weight",)
        yield from (Idle(name, f"critic.model is {self.model!r}") for name in names if self.is_set(name))


class TrainerSettings(Settings):
    """One optimizer batch: rows and step; `algorithm` has the loss."""

    ranks: int = Field(default=1, ge=1)
    """Processes that share the work and the weights of one batch, the head among them; `scheduler.trainer` says what
    each of the others gets."""
    row_tokens: int = Field(default=1024, ge=1)
    """Tokens of one micro-batch; memory for activations grows with it."""
    optimizer: OptimizerSettings = OptimizerSettings()
    publish_rounding: RoundingName = "dither"
    """How fp32 masters become bf16 weights that sample: right on average, or each to the nearest, which swallows
    changes that are small beside a weight until they have added up."""
    activation_checkpointing: bool = False
    """Recompute each layer in the backward pass: much less memory, about a third more time."""
    record_tokens: bool = True
    """Keep in the run's folder what the loss used of every trained token: some 20 bytes of each."""
