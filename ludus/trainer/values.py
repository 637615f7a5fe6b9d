"""The forward and backward pass of a packed row through a model with a scalar head: one value for each target.

Knows: rows, the model's backbone, a head of one row.  Knows not: what the values mean, losses, optimizers.
A target's value is computed at the token that it is predicted from, so it depends only on what comes before the target.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

from ludus.algorithms.pack import PackedRow
from ludus.models.load import LoadedModel
from ludus.trainer.forward import GiveWay, RowTensors, TargetStates

Slopes = Callable[[Tensor], Tensor]
"""(values of the targets) -> the loss's derivative by each, both fp32 of shape (N,)."""


class ValueForward:
    """The forward and backward pass of rows through a model with a scalar head."""

    def __init__(self, model: LoadedModel, give_way: GiveWay | None = None) -> None:
        """model: `with_scalar_head`.  give_way: as for `TargetStates`."""
        self._states = TargetStates(model, give_way)

    def tensors(self, row: PackedRow) -> RowTensors:
        """`row` on the model's device."""
        model = self._states.model
        return RowTensors.of(row, model.head_weight.device, part=model.part)

    @torch.no_grad()
    def __call__(self, row: RowTensors) -> Tensor:
        """The value of every target, fp32 of shape (N,), without gradients."""
        values_M = self._values(self._states(row))
        self._states.model.release()
        return values_M[: len(row.weights)]

    def differentiate(self, row: RowTensors, slopes: Slopes, *, sink_1D: Tensor | None) -> None:
        """Compute the gradient of every trained parameter.

        sink_1D: as for `TargetStates.differentiate`.
        """

        def through_head(hidden_MD: Tensor, sink_1D: Tensor | None) -> Tensor:
            weight = self._states.model.head_weight
            return through_scalar_head(hidden_MD, weight, slopes, len(row.weights), sink_1D).to(hidden_MD.dtype)

        self._states.differentiate(row, through_head, sink_VD=sink_1D)

    def _values(self, hidden_MD: Tensor) -> Tensor:
        return scalars(hidden_MD, self._states.model.head_weight)


def scalars(hidden_MD: Tensor, weight_1D: Tensor) -> Tensor:
    """The value of each hidden state, fp32 of shape (M,)."""
    return (hidden_MD.float() @ weight_1D.float().t())[:, 0]


@torch.no_grad()
def through_scalar_head(
    hidden_MD: Tensor, weight_1D: Tensor, slopes: Slopes, num_targets: int, sink_1D: Tensor | None
) -> Tensor:
    """The loss's gradient by the hidden states, fp32 of shape (M, D); states after the first `num_targets` are padding.

    sink_1D: fp32, to which the head's gradient is added. None: the head is not trained.
    """
    slopes_N = slopes(scalars(hidden_MD, weight_1D)[:num_targets])
    slopes_M1 = pad(slopes_N, (0, len(hidden_MD) - num_targets))[:, None]
    if sink_1D is not None:
        sink_1D.add_(slopes_M1.t() @ hidden_MD.float())
    return slopes_M1 @ weight_1D.float()
