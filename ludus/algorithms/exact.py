"""float64, for sums and shares whose last bits matter, also of tensors on a device that has no such numbers.

Knows: which devices have float64.  Knows not: what is computed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_WITHOUT = frozenset({"mps"})
"""Types of devices: Apple's GPUs compute in float32 at most."""


def exact_device(device: torch.device) -> torch.device | str:
    """Where numbers of this device are computed with in float64: there, or on the processor."""
    return "cpu" if device.type in _WITHOUT else device


def exact(values: Tensor) -> Tensor:
    """The values in float64, on `exact_device` of their device."""
    return values.to(exact_device(values.device)).double()
