"""Rows taken and added, on every device with one result."""

from __future__ import annotations

import pytest
import torch

from ludus.trainer.fixed_order import add_rows, take_rows


class OnCard(torch.Tensor):
    """A tensor of the processor that says it is on a card."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda")


@pytest.mark.parametrize("kind", [torch.Tensor, OnCard])
def test_rows_that_come_together_are_summed(kind: type[torch.Tensor]) -> None:
    """Gathering repeats rows, its gradient and adding sum them, whichever operation the device takes."""
    rows = torch.tensor([2, 0, 2, 2])
    values = torch.arange(9.0).view(3, 3).requires_grad_()
    taken = take_rows(values.as_subclass(kind), rows)
    assert taken.tolist() == [values[row].tolist() for row in rows.tolist()]
    (gradient,) = torch.autograd.grad(taken.as_subclass(torch.Tensor).sum(), values)
    assert gradient.tolist() == [[1.0] * 3, [0.0] * 3, [3.0] * 3]
    sums = torch.ones(3, 3).as_subclass(kind)
    add_rows(sums, rows, torch.ones(4, 3))
    assert sums.tolist() == [[2.0] * 3, [1.0] * 3, [4.0] * 3]
