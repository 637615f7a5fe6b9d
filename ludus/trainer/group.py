"""The group of processes that train one model together: which rows each keeps, and what they send each other.

Knows: process groups, stores, bytes.  Knows not: models, batches, who starts the processes.
Invariants: nothing that comes over the network is unpickled; what arrives is JSON, or a tensor whose shape and type the
receiver knew before.

torch's connections have no authentication. They stay on the loopback address unless another host is configured, which
must then be in a trusted network.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn.functional import pad

from ludus.engines.nccl import BroadcastGroup
from ludus.errors import BackendError, UserError
from ludus.models.device import use_device
from ludus.models.groups import RankGroups
from ludus.models.pieces import Piece, shape_of
from ludus.models.shards import is_copy, local_piece, piece_of
from ludus.processes.address import interface_towards

# Collectives of one command are seconds apart; a rank that is this late will not come any more.
STEP_TIMEOUT_S = 600.0
# Between two commands there may be an evaluation that takes a day. A rank that ends is still noticed at once.
_COMMAND_TIMEOUT = timedelta(days=365)
# torch's type stubs lack it.
TCPStore: Any = dist.TCPStore  # type: ignore[attr-defined]
_GLOO = "GLOO_SOCKET_IFNAME"


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where the ranks find each other."""

    host: str
    port: int


def open_rendezvous(host: str) -> tuple[Rendezvous, Any]:
    """A store that listens on `host`, an address of this machine. Rank 0 keeps it open."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as listener:
        try:
            listener.bind((host, 0))
        except OSError as error:
            raise UserError(
                f"trainer.host={host!r} cannot be listened on: {error.strerror}; name an address of this machine"
            ) from error
        listener.listen(socket.SOMAXCONN)
        port = listener.getsockname()[1]
        # without a listening socket the store would listen on every address of this machine
        store = TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
    return Rendezvous(host, port), store


class TorchRanks:
    """Processes joined by torch.distributed: gloo on CPUs, NCCL between GPUs."""

    def __init__(
        self, rank: int, size: int, device: torch.device, store: Any, *, context: int = 1, tensor: int = 1
    ) -> None:
        """Use `lead` or `follow`. context: ranks over which the tokens of a row are cut.  tensor: and layers."""
        if dist.is_initialized():
            raise UserError("this process trains over several ranks already, and can do so for one model at a time")
        self.rank = rank
        self.size = size
        self.device = device
        self.outlets: dict[str, BroadcastGroup] = {}
        """By name, this rank's groups with those that sample, where it sends its weights by itself."""
        self.is_aborted = False
        """What waited for others was broken off: one was lost, or failed."""
        self._is_left = False
        excepthook = sys.excepthook
        use_device(device)  # before the mesh, which would choose the GPU of the rank's number
        try:
            with one_sentence(rank), on_interface(store, device):
                dist.init_process_group(
                    "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl",
                    store=store,
                    rank=rank,
                    world_size=size,
                    timeout=timedelta(seconds=STEP_TIMEOUT_S),
                )
                self._commands = dist.new_group(backend="gloo", timeout=_COMMAND_TIMEOUT)
                self.groups = RankGroups.form(device, size, context=context, tensor=tensor)
        except BaseException:
            if dist.is_initialized():  # otherwise this process could not try again
                dist.destroy_process_group()
            raise
        finally:  # torch installs a hook that prefixes every line of a traceback with the rank
            sys.excepthook = excepthook

    @classmethod
    def lead(
        cls, store: Any, size: int, device: torch.device, *, check: Callable[[], None], **split: int
    ) -> TorchRanks:
        """This process as rank 0; waits until all others are there.

        store: of `open_rendezvous`.  check: raises if one of the others will never come.

        split: `context` and `tensor`, as at the others.
        """
        while not store.check([_rank_key(rank) for rank in range(1, size)]):
            check()
            time.sleep(0.05)
        return cls(0, size, device, store, **split)

    @classmethod
    def follow(cls, rendezvous: Rendezvous, rank: int, size: int, device: torch.device, **split: int) -> TorchRanks:
        """This process as a rank other than 0. split: as for `lead`."""
        try:
            store = TCPStore(rendezvous.host, rendezvous.port, is_master=False, timeout=timedelta(seconds=60))
        except (dist.DistNetworkError, dist.DistStoreError) as error:
            raise BackendError(f"rank 0 at {rendezvous.host}:{rendezvous.port} cannot be reached: {error}") from error
        store.set(_rank_key(rank), "taken")
        return cls(rank, size, device, store, **split)

    def __repr__(self) -> str:
        return f"TorchRanks(rank={self.rank}, size={self.size}, device={str(self.device)!r})"

    def piece(self, parameter: Tensor) -> Piece:
        return piece_of(parameter, self.rank, self.size)

    def is_copy(self, parameter: Tensor) -> bool:
        return is_copy(parameter, self.rank)

    def local_piece(self, tensor: Tensor) -> Tensor:
        return local_piece(tensor) if isinstance(tensor, DTensor) else tensor.detach()[self.piece(tensor)]

    def sum(self, value: float) -> float:
        total = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(total)
        return float(total)

    def concat(self, columns: Tensor) -> tuple[int, Tensor]:
        counts = [torch.zeros(1, dtype=torch.int64, device=self.device) for _ in range(self.size)]
        dist.all_gather(counts, torch.tensor([columns.shape[1]], device=self.device))
        largest = max(int(count) for count in counts)
        wide = [columns.new_empty(len(columns), largest) for _ in range(self.size)]
        dist.all_gather(wide, pad(columns, (0, largest - columns.shape[1])))
        parts = [each[:, : int(count)] for each, count in zip(wide, counts, strict=True)]
        return sum(int(count) for count in counts[: self.rank]), torch.cat(parts, 1)

    def gather(self, value: Any) -> list[Any]:
        if self.rank > 0:
            self.send(0, value)
            return [value]
        return [value, *(self.receive(rank) for rank in range(1, self.size))]

    def send(self, rank: int, value: Any) -> None:
        """Send a value that JSON can hold."""
        body = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        dist.send(torch.tensor([len(body)]), rank, group=self._commands)
        dist.send(body, rank, group=self._commands)

    def receive(self, rank: int) -> Any:
        """The value that the other rank sends; waits as long as the other rank lives."""
        length = torch.empty(1, dtype=torch.int64)
        dist.recv(length, rank, group=self._commands)
        body = torch.empty(int(length), dtype=torch.uint8)
        dist.recv(body, rank, group=self._commands)
        return json.loads(body.numpy().tobytes())

    def whole(self, own: Tensor, parameter: Tensor) -> Tensor | None:
        """A tensor of the parameter's shape on the CPU, put together from all ranks' pieces. None: this is not rank
        0."""
        if self.rank > 0:
            if own.numel() and not self.is_copy(parameter):
                dist.send(own.cpu().contiguous(), 0, group=self._commands)
            return None
        total = torch.empty(parameter.shape, dtype=own.dtype)
        for rank in range(self.size):
            piece = piece_of(parameter, rank, self.size)
            part = own if rank == 0 else torch.empty(shape_of(piece, parameter.shape), dtype=own.dtype)
            if rank > 0 and part.numel() and not is_copy(parameter, rank):
                dist.recv(part, rank, group=self._commands)
            if not is_copy(parameter, rank):
                total[piece].copy_(part)
        return total

    def abort(self) -> None:
        """Break off what waits for other ranks, on whichever thread; nothing can be computed together afterwards.

        Between processors a lost connection is noticed by itself. On a card a sum or a gather waits for a rank that is
        gone until its time is over, and then ends the whole process.
        """
        if self.device.type == "cuda" and not (self.is_aborted or self._is_left):
            self.is_aborted = True
            if dist.is_initialized():
                dist.distributed_c10d._abort_process_group()

    def close(self, *, is_broken: bool = False) -> None:
        """Leave the group. The others must have been told to end.

        is_broken: a rank failed in the middle, so what it began is not waited for.
        """
        if is_broken:
            self.abort()
        self._is_left = True  # those who were told to end are not lost
        if dist.is_initialized():
            dist.destroy_process_group()


@contextmanager
def one_sentence(rank: int) -> Iterator[None]:
    """Turns a lost connection to another rank into a BackendError in one sentence, instead of gloo's own message."""
    try:
        yield
    except RuntimeError as error:
        if not is_connection_lost(error):
            raise
        raise BackendError(
            f"rank {rank} of the trainer ends: the connection to another rank was lost, and the log of that one, "
            "or of the run, says why; the run goes on from its last checkpoint"
        ) from error


def is_connection_lost(error: RuntimeError) -> bool:
    """Whether the error means that another process is gone; gloo has no error type for that."""
    return isinstance(error, dist.DistError) or "gloo" in str(error)


def _rank_key(rank: int) -> str:
    return f"ludus/rank/{rank}"


@contextmanager
def on_interface(store: Any, device: torch.device) -> Iterator[None]:
    """Make gloo and NCCL listen where the store is reached, while a group is made: on the loopback address if it is
    there, else under this machine's address on the route to it, whatever this machine's name leads to.

    They take it only from environment variables; a value set by the user is not changed. NCCL's stays, because NCCL
    listens when the ranks first compute together.
    """
    name = interface_towards(store.host) if isinstance(store, TCPStore) else None
    if name is None:
        yield
        return
    if device.type == "cuda":
        os.environ.setdefault("NCCL_SOCKET_IFNAME", name)
    is_ours = _GLOO not in os.environ
    os.environ.setdefault(_GLOO, name)
    try:
        yield
    finally:
        if is_ours:
            del os.environ[_GLOO]
