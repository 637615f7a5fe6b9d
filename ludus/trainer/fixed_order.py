"""Takes rows of a tensor and adds rows to one, so that what comes together at a row is summed in the same order each
time.

Knows: which of torch's operations keep an order on which device.  Knows not: what the rows are.

On a card `index_add_`, and with it the gradient of `index_select`, adds in whatever order threads come, so that the
last bits differ from time to time; indexing sorts first. On the CPU indexing is the one whose threads race.

Shapes: S rows, M indices, D width.
"""

from __future__ import annotations

from torch import Tensor


def take_rows(values_SD: Tensor, rows_M: Tensor) -> Tensor:
    """The rows of these indices, of which some may be equal, shape (M, D); differentiable."""
    return values_SD.index_select(0, rows_M) if values_SD.device.type == "cpu" else values_SD[rows_M]


def add_rows(sums_SD: Tensor, rows_M: Tensor, values_MD: Tensor) -> None:
    """Add each of the values to the row of its index. Modifies `sums_SD`."""
    if sums_SD.device.type == "cpu":
        sums_SD.index_add_(0, rows_M, values_MD)
    else:
        sums_SD.index_put_((rows_M,), values_MD, accumulate=True)
