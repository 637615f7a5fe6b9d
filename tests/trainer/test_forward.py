"""What the forward and backward pass of a row keeps; what it computes is in test_step.py and test_sharded.py."""

from __future__ import annotations

import weakref
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor, nn

from ludus.trainer.forward import RowTensors, TargetStates


class OneLayer(TargetStates):
    """Its hidden states are one weight."""

    def __init__(self, model: Any, layer: Tensor) -> None:
        super().__init__(model)
        self._layer = layer

    def __call__(self, row: RowTensors) -> Tensor:
        return self._layer * 1


def test_the_exact_gradient_of_a_head_that_was_gathered_is_gone_before_the_layers_are_computed() -> None:
    """It is twice as large as the head, and would lie beside all activations of the row."""
    head = nn.Parameter(torch.zeros(5, 3, dtype=torch.bfloat16))
    layer = torch.ones(2, 3, requires_grad=True)
    sinks: list[weakref.ref[Tensor]] = []
    left: list[Tensor | None] = []

    def through_head(hidden_MD: Tensor, sink_VD: Tensor | None) -> Tensor:
        assert sink_VD is not None and sink_VD.dtype == torch.float32
        sinks.append(weakref.ref(sink_VD.add_(2)))
        return torch.ones_like(hidden_MD)

    layer.register_hook(lambda _: left.append(sinks[0]()))
    states = OneLayer(SimpleNamespace(head_weight=head, gathering=object()), layer)
    states.differentiate(cast(Any, None), through_head)
    assert left == [None] and head.grad is not None and head.grad.eq(2).all()
