"""AdamW on fp32 master weights ("masters"): accumulates gradients in fp32, clips them, follows a schedule.

Knows: parameters by name, of which this process may keep some rows.  Knows not: losses, batches, who reads the weights.
Invariant: a parameter's own gradient is freed as soon as it has been added to the fp32 buffer; the parameter itself
changes only in `copy_to_parameters`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from ludus.errors import ConfigError, UserError
from ludus.models.pieces import Piece
from ludus.trainer.adamw import make_adamw
from ludus.trainer.fixed_order import add_rows
from ludus.trainer.loss_scale import LossScale
from ludus.trainer.offload import HostMemory, PinnedMemory
from ludus.trainer.ranks import Ranks, SingleRank
from ludus.trainer.rounding import Rounding
from ludus.trainer.settings import OptimizerSettings

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StepResult:
    """One optimizer step."""

    grad_norm: float
    """Before clipping."""
    lr: float
    is_skipped: bool
    """The gradient was not finite, so no weight was changed."""

    def metrics(self, area: str) -> dict[str, float]:
        """The step's metrics, named `area/…`."""
        shown = {f"{area}/grad_norm": self.grad_norm, f"{area}/lr": self.lr}
        return {**shown, f"{area}/skipped_steps": 1.0} if self.is_skipped else shown


def learning_rate(batch: int, settings: OptimizerSettings) -> float:
    """Learning rate of batch number `batch` (the first is 0): linear warm-up, then the chosen decay."""
    if batch < settings.warmup_steps:
        first = 0 if settings.warmup_from_zero else 1
        return settings.lr * (batch + first) / settings.warmup_steps
    if settings.decay == "constant" or settings.total_steps is None:
        return settings.lr
    num_decay_steps = max(1, settings.total_steps - settings.warmup_steps)
    done = min(1.0, (batch - settings.warmup_steps) / num_decay_steps)
    return settings.lr * (1 - done if settings.decay == "linear" else (1 + math.cos(math.pi * done)) / 2)


class MasterOptimizer:
    """The trained parameters' fp32 copies, their gradients and AdamW's moments: this process's pieces of them."""

    def __init__(
        self,
        parameters: Mapping[str, Parameter],
        settings: OptimizerSettings,
        rounding: Rounding,
        ranks: Ranks | None = None,
        *,
        in_host: bool = False,
    ) -> None:
        """rounding: of masters to parameters.  ranks: the parameters are sharded over these. None: they are whole.

        in_host: masters and moments are in the host's memory all the time, if the parameters are not; a step is
        computed where these are.
        Raises ConfigError for a decay without `total_steps`.
        """
        if settings.decay != "constant" and settings.total_steps is None:
            raise ConfigError(
                f"trainer.optimizer.decay={settings.decay!r} needs the number of steps after which the learning "
                "rate is 0: set trainer.optimizer.total_steps, or total_train_steps of a run"
            )
        self.settings = settings
        self.rounding = rounding
        self.num_batches = 0
        """Batches that have ended: the position in the schedule."""
        self.ranks: Ranks = SingleRank() if ranks is None else ranks
        self._parameters = dict(parameters)
        self.loss_scale = LossScale(is_needed=any(each.dtype == torch.float16 for each in parameters.values()))
        """The accumulated gradients are to be divided by its factor."""
        self._device = next(iter(parameters.values())).device
        if in_host and self._device.type == "cpu":
            logger.warning("trainer.offload=optimizer has no effect: the model is on the processor, as all else is")
        self._pinned = PinnedMemory(self._device) if in_host and self._device.type != "cpu" else None
        """Where masters and moments are. None: on the device, or moved with the gradients."""
        own = self.ranks.local_piece
        self._masters = {name: self._master(own(each)) for name, each in parameters.items()}
        self._grads = {name: self._new_gradient(name) for name in parameters}
        self._empty = set(self._masters)
        for name, parameter in self._parameters.items():
            parameter.register_post_accumulate_grad_hook(_GradientMover(self, name))  # type: ignore[no-untyped-call]
        self._adamw = make_adamw(self._masters, settings, host=self._pinned)
        self._host: HostMemory | None = None
        """Where all of it lies while it is not computed with. None: it stays where it is."""

    def __repr__(self) -> str:
        num_values = sum(master.numel() for master in self._masters.values())
        return f"<MasterOptimizer of {num_values:,} values after {self.num_batches} batches>"

    @property
    def masters(self) -> Mapping[str, Tensor]:
        """The fp32 master weights by parameter name: the rows that this process keeps."""
        return self._masters

    @property
    def pieces(self) -> Mapping[str, Piece]:
        """What of each parameter this process keeps."""
        return {name: self.ranks.piece(parameter) for name, parameter in self._parameters.items()}

    @property
    def is_offloaded(self) -> bool:
        return self._host is not None

    def offload(self) -> None:
        """From now on masters, gradients and moments are on the parameters' device within `on_device` alone, and in the
        host's memory else."""
        self._host = HostMemory(self._device)
        self._leave_device(self._host)

    @contextmanager
    def on_device(self) -> Iterator[None]:
        """Within the block gradients may be added and steps taken. Nothing is moved without `offload`."""
        host = self._host
        if host is None:
            yield
            return
        host.give_back(self._movable())
        try:
            yield
        finally:
            self._leave_device(host)

    def _leave_device(self, host: HostMemory) -> None:
        self._grads = self.gradients()  # what was not added to holds nothing
        host.take(self._movable())

    def _movable(self) -> dict[str, Tensor]:
        gradients = {f"gradient/{name}": each for name, each in self._grads.items()}
        if self._pinned is not None:
            return gradients
        masters = {f"master/{name}": each for name, each in self._masters.items()}
        return {**masters, **gradients, **self._adamw.beside_weights()}

    def _master(self, rows: Tensor) -> Tensor:
        if self._pinned is None:
            return rows.to(torch.float32, copy=True)
        return self._pinned.empty(rows.shape, torch.float32).copy_(rows.detach())

    def _new_gradient(self, name: str) -> Tensor:
        return torch.empty_like(self._masters[name], device=self._device)

    def sink(self, name: str) -> Tensor:
        """The fp32 buffer of the parameter's gradient, to add to."""
        if name in self._empty:
            self._empty.discard(name)
            self._buffer(name).zero_()
        return self._grads[name]

    def _buffer(self, name: str) -> Tensor:
        """The same, whatever it holds."""
        if name not in self._grads:
            self._grads[name] = self._new_gradient(name)
        return self._grads[name]

    def add_gradient(self, name: str, gradient: Tensor) -> None:
        """Add a gradient to the fp32 buffer; a sparse one (of embeddings) touches only its rows."""
        if gradient.is_sparse:
            add_rows(self.sink(name), gradient._indices()[0], gradient._values().float())
        elif name in self._empty:
            self._empty.discard(name)
            self._buffer(name).copy_(gradient)
        else:
            self._grads[name].add_(gradient)

    def gradients(self) -> dict[str, Tensor]:
        """The accumulated gradients by parameter name; parameters without one are left out.

        Their order is that of the parameters, whenever each began: sums over them have the same last bits.
        """
        return {name: self._grads[name] for name in self._masters if name not in self._empty}

    def forget_gradients(self) -> None:
        """Discard the accumulated gradients."""
        self._empty = set(self._masters)

    def step(self) -> StepResult:
        """Update the masters by the accumulated gradients, and discard these. The parameters do not change yet.

        If the gradient is not finite, no weight is changed.
        """
        lr = learning_rate(self.num_batches, self.settings)
        if self.loss_scale.factor != 1:
            torch._foreach_div_(list(self.gradients().values()), self.loss_scale.factor)
        norm = float(self._clip())
        is_skipped = not math.isfinite(norm)
        self.loss_scale.update(is_finite=not is_skipped)
        if is_skipped:
            logger.warning("optimizer.skipped batch=%d grad_norm=%s", self.num_batches, norm)
        else:
            self._adamw.step(self.gradients(), lr)
        self.forget_gradients()
        return StepResult(norm, lr, is_skipped)

    def end_batch(self) -> None:
        """Advance the schedule. All optimizer steps of a batch have the same learning rate."""
        self.num_batches += 1

    @torch.no_grad()
    def copy_to_parameters(self) -> None:
        """Round the masters into the parameters' own tensors."""
        for name, parameter in self._parameters.items():
            self._round(name, self.ranks.local_piece(parameter))

    def rounded(self, name: str) -> Tensor:
        """What `copy_to_parameters` would write to this process's rows of a weight, in the parameter's type."""
        parameter = self._parameters[name]
        rows = torch.empty_like(self._masters[name], dtype=parameter.dtype, device=parameter.device)
        self._round(name, rows)
        return rows

    def state(self) -> dict[str, Any]:
        """Everything that a resumed run needs to continue exactly: this process's rows, and the shapes of the whole."""
        shapes = {name: tuple(parameter.shape) for name, parameter in self._parameters.items()}
        moments = self._adamw.moments()
        copies = frozenset(name for name, parameter in self._parameters.items() if self.ranks.is_copy(parameter))
        return {
            "masters": self._masters,
            "moments": moments,
            "num_batches": self.num_batches,
            "loss_scale": self.loss_scale.state(),
            "shapes": shapes,
            "pieces": self.pieces,
            "copies": copies,
        }

    @torch.no_grad()
    def load_state(self, state: Mapping[str, Any]) -> None:
        """Load what `state` returned. Raises UserError if it is of other parameters."""
        if set(state["masters"]) != set(self._masters):
            odd = sorted(set(state["masters"]) ^ set(self._masters))[:3]
            raise UserError(f"the checkpoint is of another model: parameters {odd} are not in both")
        for name, parameter in self._parameters.items():
            got, here = state["shapes"][name], tuple(parameter.shape)
            if got != here:
                raise UserError(f"the checkpoint is of another model: {name} has shape {got}, but {here} here")
        for name, master in self._masters.items():
            master.copy_(state["masters"][name])
        self._adamw.take_over(state["moments"])
        self.forget_gradients()
        self.num_batches = int(state["num_batches"])
        self.loss_scale.load_state(state["loss_scale"])

    @torch.no_grad()
    def take_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Start anew with these masters, given by parameter name. Raises UserError if they are of other parameters."""
        for name, master in self._masters.items():
            if name not in weights or weights[name].shape != master.shape:
                raise UserError(f"the weights are of another model: there is no {name} of shape {tuple(master.shape)}")
            master.copy_(weights[name])
        self._adamw = make_adamw(self._masters, self.settings, host=self._pinned)
        self.forget_gradients()
        self.num_batches = 0

    def _round(self, name: str, into: Tensor) -> None:
        shape = self._parameters[name].shape
        rows, *columns = self.ranks.piece(self._parameters[name])
        first = rows.start * math.prod(shape[1:]) + (columns[0].start if columns else 0)
        stride = shape[1] if columns else None
        self.rounding.copy(self._masters[name], into, name=name, first=first, stride=stride)

    @torch.no_grad()
    def _clip(self) -> Tensor:
        gradients = self.gradients()
        # what several ranks keep is counted once
        counted = [each for name, each in gradients.items() if not self.ranks.is_copy(self._parameters[name])]
        norm = torch.nn.utils.get_total_norm(counted)
        if self.ranks.size > 1:
            norm = torch.tensor(self.ranks.sum(float(norm) ** 2) ** 0.5)
        limit = self.settings.max_grad_norm
        if limit is not None and limit < norm < math.inf:
            torch._foreach_mul_(list(gradients.values()), limit / norm)
        return norm


@dataclass(frozen=True, slots=True)
class _GradientMover:
    """A hook that autograd calls with a finished gradient: adds it to the fp32 buffer and frees it."""

    optimizer: MasterOptimizer
    name: str

    def __call__(self, parameter: Tensor) -> None:
        assert parameter.grad is not None, f"autograd finished {self.name} without a gradient"
        self.optimizer.add_gradient(self.name, self.optimizer.ranks.local_piece(parameter.grad))
        parameter.grad = None
