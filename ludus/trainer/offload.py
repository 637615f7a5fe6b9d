"""Pinned memory of the host, for tensors that a card has no room for: all the time, or while somebody else needs it.

Knows: tensors, by name if they move.  Knows not: what they are for, whose turn it is.
Invariants: a tensor that moves keeps its identity and its bits; each has one place in the host's memory, which is
pinned, so that copies go at the speed of the bus, and is used again: pinning takes longer than copying.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import torch
from torch import Tensor
from torch.utils import swap_tensors

from ludus.models.device import free_cached

# Of a block of pinned memory, from which tensors are cut: torch takes powers of two, so that tensors by themselves
# would take up to twice as much.
_BLOCK_BYTES = 1 << 30
# Where a tensor begins in a block: at a page of the host's memory.
_ALIGNMENT = 4096


class PinnedMemory:
    """Memory of the host for tensors that never lie on a card. It is given back when the last of a block's is gone."""

    def __init__(self, device: torch.device) -> None:
        """device: the card that reads and writes them."""
        self.device = device
        self._blocks: list[tuple[Tensor, int]] = []
        """Blocks of bytes, and how many of each are taken."""

    def __repr__(self) -> str:
        return f"<PinnedMemory for {self.device}, {sum(taken for _, taken in self._blocks):,} bytes>"

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A tensor that holds anything."""
        num_bytes = prod(shape) * dtype.itemsize
        fits = (idx for idx, (block, taken) in enumerate(self._blocks) if len(block) - taken >= num_bytes)
        number = next(fits, len(self._blocks))
        if number == len(self._blocks):
            size = max(_BLOCK_BYTES, 1 << (num_bytes - 1).bit_length()) if num_bytes else 0
            # without a card, as in tests, nothing can be pinned
            self._blocks.append((torch.empty(size, dtype=torch.uint8, pin_memory=self.device.type == "cuda"), 0))
        block, taken = self._blocks[number]
        end = taken + num_bytes
        self._blocks[number] = (block, end + -end % _ALIGNMENT)
        return block[taken:end].view(dtype).view(tuple(shape))

    def wait(self) -> None:
        """Wait until the card has done what it was told to: copies to the host are not waited for else."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


class HostMemory:
    """The places of tensors that a card has no room for at the moment."""

    def __init__(self, device: torch.device) -> None:
        """device: the card. With the processor nothing ever moves."""
        self._device = device
        self._pinned = PinnedMemory(device)
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
                place = self._pinned.empty(tensor.shape, tensor.dtype)
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
