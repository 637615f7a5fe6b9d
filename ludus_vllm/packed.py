"""Weights in messages from several senders: each sends its pieces of the tensors, several of them in one message.

Knows: torch, shapes, bytes.  Knows not: vLLM, Ludus, how messages travel.
Invariant: who sends and who receives compute the same places from the same announcement, which is JSON; nothing but
bytes of numbers is in a message.

    announced    names, types and shapes of the tensors; for each the piece that each sender has; how they are grouped
    messages     for each group one from each sender, in order: its pieces of the group's tensors, one after the other
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_ALIGNED = 16  # a piece begins at a multiple of so many bytes, as numbers of every type must


@dataclass(frozen=True)
class Announcement:
    """What is going to be sent."""

    names: Sequence[str]
    dtype_names: Sequence[str]
    shapes: Sequence[Sequence[int]]
    pieces: Sequence[Sequence[Sequence[Sequence[int]] | None]]
    """By tensor and sender [first, end] of each dimension that is cut. None: another one sends the same."""
    groups: Sequence[Sequence[int]]
    """Indices of the tensors that are sent, and are whole at the receiver, together."""

    @property
    def num_senders(self) -> int:
        return len(self.pieces[0]) if self.pieces else 0

    def places(self, group: Sequence[int], sender: int) -> list[tuple[int, int, tuple[slice, ...]]]:
        """For each piece of a message: its tensor, at which byte it begins, and where it is in the tensor."""
        found, at = [], 0
        for index in group:
            spans = self.pieces[index][sender]
            if spans is None:
                continue
            piece = tuple(slice(start, end) for start, end in spans)
            found.append((index, at, piece))
            at += -(-self._num_bytes(index, piece) // _ALIGNED) * _ALIGNED
        return found

    def message_bytes(self, group: Sequence[int], sender: int) -> int:
        places = self.places(group, sender)
        return places[-1][1] + self._num_bytes(places[-1][0], places[-1][2]) if places else 0

    def pack(
        self, group: Sequence[int], sender: int, value: Callable[[str], Tensor], device: torch.device
    ) -> Tensor | None:
        """One message. value: the sender's piece of a tensor, by name. None: there is nothing in it, and none is
        sent."""
        num_bytes = self.message_bytes(group, sender)
        if not num_bytes:
            return None
        message = torch.empty(num_bytes, dtype=torch.uint8, device=device)
        for index, at, piece in self.places(group, sender):
            self._view(message, index, at, piece).copy_(value(self.names[index]))
        return message

    def receive(
        self, group: Sequence[int], receive: Callable[[int, Tensor], object], device: torch.device
    ) -> Iterator[tuple[str, Tensor]]:
        """The tensors of a group. receive: (sender, message): fills the message with what comes from the sender."""
        tensors = {
            index: torch.empty(tuple(self.shapes[index]), dtype=getattr(torch, self.dtype_names[index]), device=device)
            for index in group
        }
        for sender in range(self.num_senders):
            num_bytes = self.message_bytes(group, sender)
            if not num_bytes:
                continue
            message = torch.empty(num_bytes, dtype=torch.uint8, device=device)
            receive(sender, message)
            for index, at, piece in self.places(group, sender):
                tensors[index][piece] = self._view(message, index, at, piece)
        yield from ((self.names[index], tensor) for index, tensor in tensors.items())

    def _view(self, message: Tensor, index: int, at: int, piece: tuple[slice, ...]) -> Tensor:
        """A piece in its message."""
        dtype: torch.dtype = getattr(torch, self.dtype_names[index])
        shape = (*(each.stop - each.start for each in piece), *self.shapes[index][len(piece) :])
        return message[at : at + self._num_bytes(index, piece)].view(dtype).view(shape)

    def _num_bytes(self, index: int, piece: tuple[slice, ...]) -> int:
        dtype: Any = getattr(torch, self.dtype_names[index])
        count = dtype.itemsize
        for dim, size in enumerate(self.shapes[index]):
            count *= piece[dim].stop - piece[dim].start if dim < len(piece) else size
        return int(count)


def grouped(num_bytes: Sequence[int], most_bytes: int) -> list[list[int]]:
    """Tensors of so many bytes in groups of at most `most_bytes`, in order; larger ones are alone."""
    groups: list[list[int]] = []
    total = 0
    for index, size in enumerate(num_bytes):
        if not groups or total + size > most_bytes:
            groups.append([])
            total = 0
        groups[-1].append(index)
        total += size
    return groups
