"""One process's part in a group that NCCL connects: it joins by an id that was made known beforehand, and broadcasts.

Knows: NCCL's C interface (2.x), through the library that torch loads.  Knows not: what is sent, who else is there.

Tried on a card in a group of one. torch.distributed does the same for peers in groups of its own; a server that
samples is in none of them.
"""

from __future__ import annotations

import ctypes
from typing import Any, Protocol

from ludus.errors import BackendError, UserError

UNIQUE_ID_BYTES = 128
LIBRARY = "libnccl.so.2"
# ncclDataType_t and ncclRedOp_t in nccl.h
_TYPES = {"torch.uint8": 1, "torch.float16": 6, "torch.float32": 7, "torch.bfloat16": 9}
_SUM = 0


class BroadcastGroup(Protocol):
    """The trainer's part, or one of its ranks', in a group with those that sample."""

    def broadcast(self, tensor: Any) -> None:
        """Send a tensor to all other members."""

    def abort(self) -> None:
        """Leave the group, whatever is being sent."""


class _UniqueId(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_byte * UNIQUE_ID_BYTES),)


def load_library(name: str = LIBRARY) -> ctypes.CDLL:
    """Raises UserError where there is no NCCL."""
    try:
        library = ctypes.CDLL(name)
    except OSError as error:
        raise UserError(
            f"engine.weights=nccl needs {name}, which comes with torch for CUDA: {error}; choose another way"
        ) from error
    library.ncclGetErrorString.restype = ctypes.c_char_p
    library.ncclCommInitRank.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_int, _UniqueId, ctypes.c_int]
    pointers, group = [ctypes.c_void_p] * 2, [ctypes.c_void_p] * 2
    library.ncclAllReduce.argtypes = [*pointers, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, *group]
    library.ncclBroadcast.argtypes = [*pointers, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, *group]
    library.ncclCommDestroy.argtypes = library.ncclCommAbort.argtypes = [ctypes.c_void_p]
    return library


def new_unique_id(library: ctypes.CDLL) -> bytes:
    """What all members of a new group have to know."""
    found = _UniqueId()
    _check(library, library.ncclGetUniqueId(ctypes.byref(found)))
    return bytes(bytearray(found.internal))


class NcclGroup:
    """This process as rank 0 of a group. Used on one thread at a time, with the CUDA device of the tensors."""

    def __init__(self, library: ctypes.CDLL, unique_id: bytes, world_size: int, device: Any) -> None:
        """Blocks until every member has joined, which may be never. device: the card whose tensors are broadcast."""
        import torch  # who has such a device has it

        self._library = library
        self._communicator = ctypes.c_void_p()
        with torch.cuda.device(device):
            shared = _UniqueId.from_buffer_copy(unique_id)
            joined = library.ncclCommInitRank(ctypes.byref(self._communicator), world_size, shared, 0)
            _check(library, joined)
            first = torch.zeros(1, device=device)  # vLLM sums one number first, and every member takes part
            where, stream = first.data_ptr(), torch.cuda.current_stream(device).cuda_stream
            of_type = _TYPES[str(first.dtype)]
            _check(library, library.ncclAllReduce(where, where, 1, of_type, _SUM, self._communicator, stream))
            torch.cuda.synchronize(device)

    def broadcast(self, tensor: Any) -> None:
        """Send a tensor to all other members; returns when they have been read here."""
        import torch

        tensor = tensor.detach().contiguous()
        where, stream = tensor.data_ptr(), torch.cuda.current_stream(tensor.device).cuda_stream
        with torch.cuda.device(tensor.device):
            of_type = _TYPES[str(tensor.dtype)]
            sent = self._library.ncclBroadcast(where, where, tensor.numel(), of_type, 0, self._communicator, stream)
            _check(self._library, sent)
            torch.cuda.current_stream(tensor.device).synchronize()

    def abort(self) -> None:
        """Leave the group at once, whatever is being sent; `broadcast` on another thread ends. May be called twice."""
        communicator, self._communicator = self._communicator, ctypes.c_void_p()
        if communicator:
            self._library.ncclCommAbort(communicator)


def _check(library: ctypes.CDLL, status: int) -> None:
    if status:
        raise BackendError(f"NCCL failed: {library.ncclGetErrorString(status).decode()}; NCCL_DEBUG=INFO tells more")
