"""Moves tensors between a card and pinned memory of the host, while somebody else needs the card's.

Knows: tensors by name.  Knows not: what they are for, whose turn it is.
Invariants: a tensor keeps its identity and its bits; each has one place in the host's memory, which is pinned, so that
copies go at the speed of the bus, and is used again: pinning takes longer than copying.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.utils import swap_tensors

from ludus.models.device import free_cached


class HostMemory:
    """The places of tensors that a card has no room for at the moment."""

    def __init__(self, device: torch.device) -> None:
        """device: the card. With the processor nothing ever moves."""
        self._device = device
        self._places: dict[str, Tensor] = {}
        """Of the tensors that are on the card, by name."""

    def __repr__(self) -> str:
        return f"<HostMemory of {self._device}, {len(self._places)} places free>"

    @torch.no_grad()
    def take(self, tensors: Mapping[str, Tensor]) -> None:
        """Move these from the card to their places, and give the card's memory back."""
        for name, tensor in tensors.items():
            if tensor.device.type == "cpu":
                continue
            place = self._places.pop(name, None)
            if place is None or place.shape != tensor.shape:
                place = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
            place.copy_(tensor, non_blocking=True)
            swap_tensors(tensor, place)  # type: ignore[no-untyped-call]
            del place  # the card's memory: its next use comes after the copy, on the same stream
        free_cached(self._device)

    @torch.no_grad()
    def give_back(self, tensors: Mapping[str, Tensor]) -> None:
        """Move these to the card."""
        for name, tensor in tensors.items():
            if tensor.device == self._device:
                continue
            moved = tensor.to(self._device, non_blocking=True)
            swap_tensors(tensor, moved)  # type: ignore[no-untyped-call]
            if moved.is_pinned():  # what was loaded from a checkpoint is not
                self._places[name] = moved
