"""The critic: a separate model that predicts returns, trained beside the policy.

Knows: a model with a scalar head, rows with values and their targets, its optimizer.
Knows not: advantages, the policy, engines: its weights are never published.
Invariants, as for the policy's trainer: neither rows nor their order nor ranks change a gradient; training from a
checkpoint leads to equal weights.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ludus.algorithms.pack import PackedRow
from ludus.algorithms.value_loss import value_loss
from ludus.errors import InternalError
from ludus.models.load import LoadedModel, load_model
from ludus.models.scalar_head import with_scalar_head
from ludus.models.settings import ModelSettings
from ludus.runs.metrics import Metrics, merge_means
from ludus.trainer.checkpoint import read_state, write_state
from ludus.trainer.forward import GiveWay
from ludus.trainer.metric_means import TokenMeans, epoch_metrics
from ludus.trainer.optimizer import MasterOptimizer
from ludus.trainer.ranks import Ranks
from ludus.trainer.recompute import recompute_layers
from ludus.trainer.rounding import Rounding
from ludus.trainer.settings import CriticSettings, TrainerSettings
from ludus.trainer.values import ValueForward

logger = logging.getLogger(__name__)

# Folder inside that of the trainer's own state.
CRITIC_FOLDER = "critic"


@dataclass(frozen=True, eq=False, slots=True)
class CriticModel:
    """The model and the settings of a critic."""

    model: LoadedModel
    """Made by `with_scalar_head`; sharded over the ranks as the policy is."""
    settings: CriticSettings


def load_critic(
    model: ModelSettings, settings: CriticSettings, *, seed: int = 0, is_mapped: bool = False
) -> CriticModel | CriticSettings:
    """The critic of a run whose policy is `model`; arguments as for `load_model`. If it shares the policy's layers,
    only its settings are returned."""
    if settings.model == "shared":
        return settings
    own = model if settings.path is None else model.model_copy(update={"path": settings.path})
    loaded = with_scalar_head(load_model(own, seed=seed, is_mapped=is_mapped))
    num_trained = sum(parameter.numel() for parameter in loaded.trainable.values())
    num_bytes = sum(parameter.nbytes for parameter in loaded.module.parameters())
    # master, gradient and two moments in fp32 for each trained weight
    logger.info(
        "critic %s: %d values, of which %d are trained; %.0f MB of weights and %.0f MB to train them",
        own.path,
        sum(parameter.numel() for parameter in loaded.module.parameters()),
        num_trained,
        num_bytes / 1e6,
        16 * num_trained / 1e6,
    )
    return CriticModel(loaded, settings)


class Critic:
    """Measures values, and is trained towards their targets."""

    def __init__(
        self,
        critic: CriticModel,
        how: TrainerSettings,
        *,
        rounding: Rounding,
        ranks: Ranks,
        hold: Callable[[], AbstractContextManager[None]],
        give_way: GiveWay | None = None,
    ) -> None:
        """how: settings of the policy's trainer.  hold, give_way: as for `Backward` and `TargetStates`."""
        self.model, self.settings = critic.model, critic.settings
        self.optimizer = MasterOptimizer(
            self.model.trainable, self.settings.optimizer, rounding, ranks, in_host=how.offload == "optimizer"
        )
        self._forward = ValueForward(self.model, give_way)
        self._ranks, self._hold = ranks, hold
        is_whole = self.model.gathering is None
        heads = (name for name, each in self.model.trainable.items() if is_whole and each is self.model.head_weight)
        self._head_name = next(heads, None)
        self.model.embedding.sparse = is_whole and self.model.embedding.weight.requires_grad
        if how.activation_checkpointing:
            recompute_layers(self.model)

    def __repr__(self) -> str:
        return f"<Critic of {self.model!r} after {self.optimizer.num_batches} batches>"

    @property
    def is_warming_up(self) -> bool:
        """Whether the next batch trains only the critic."""
        return self.optimizer.num_batches < self.settings.warmup_steps

    def values(self, row: PackedRow) -> Tensor:
        """The value before each target, shape (N,)."""
        return self._forward(self._forward.tensors(row))

    def train(self, minibatches: Sequence[Sequence[PackedRow]], *, epochs: int = 1) -> Metrics:
        """Take an optimizer step on each minibatch in each epoch, and return the metrics.

        epochs: used if the critic's settings do not say.
        """
        parts = [part for part in minibatches if part]
        seen, steps = list[Metrics](), list[Metrics]()
        with self.optimizer.on_device() if parts else nullcontext():
            for _ in range(self.settings.epochs or epochs):
                means = TokenMeans()
                steps += [self._train_part(part, means) for part in parts]
                seen.append(means.over(self._ranks))
        self.optimizer.end_batch()
        return {**epoch_metrics(seen, num_minibatches=len(minibatches)), **merge_means(steps)}

    def add(self, rows: Sequence[PackedRow], means: TokenMeans) -> None:
        """Add the loss's gradient over `rows` to the optimizer, and its metrics to `means`."""
        for row in rows:
            with self._hold():
                self._add_row(row, means)

    def save(self, folder: Path) -> None:
        """Write what `load` needs to continue exactly, into a folder inside `folder`. Synced to disk."""
        write_state(folder / CRITIC_FOLDER, self.optimizer.num_batches, self.optimizer.state(), self._ranks)

    def load(self, folder: Path) -> None:
        """Load what `save` wrote. Raises UserError if there is nothing, or if it is of another model."""
        _, state = read_state(folder / CRITIC_FOLDER, self.optimizer.pieces)
        self.optimizer.load_state(state)
        with self._hold():
            self.optimizer.copy_to_parameters()

    def _train_part(self, rows: Sequence[PackedRow], means: TokenMeans) -> dict[str, float]:
        self.add(rows, means)
        with self._hold():
            result = self.optimizer.step()
            self.optimizer.copy_to_parameters()
        return result.metrics("critic")

    def _add_row(self, row: PackedRow, means: TokenMeans) -> None:
        tensors = self._forward.tensors(row)

        def slopes(values: Tensor) -> Tensor:
            by_value = value_slopes(values, row, tensors.weights, clip_range=self.settings.clip_range, means=means)
            return by_value * self.optimizer.loss_scale.factor

        sink = None if self._head_name is None else self.optimizer.sink(self._head_name)
        self._forward.differentiate(tensors, slopes, sink_1D=sink)


def value_slopes(
    values: Tensor, row: PackedRow, weights: Tensor, *, clip_range: float | None, means: TokenMeans
) -> Tensor:
    """The value loss's derivative by the value of each target of the row, shape (N,); adds its metrics to `means`.

    weights: of the targets.  clip_range: as for `value_loss`.
    """
    if row.values is None or row.value_targets is None:
        raise InternalError("a critic learns from values and their targets, and a row has none")
    measured, targets = (
        torch.tensor(each, dtype=torch.float32, device=values.device) for each in (row.values, row.value_targets)
    )
    with torch.enable_grad():
        values = values.detach().requires_grad_()
        loss, seen = value_loss(values, measured, targets, weights, clip_range=clip_range)
        (by_value,) = torch.autograd.grad(loss, values)
    means.add_sum("critic/loss", float(loss.detach()))
    if len(values):
        means.add({f"critic/{name}": float(each) for name, each in seen.items()}, len(values))
    return by_value
