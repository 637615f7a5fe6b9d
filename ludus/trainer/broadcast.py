"""New weights from the ranks of a trainer to those that sample: each rank broadcasts its own pieces, none gathers any.

Knows: pieces of weights, groups of one rank and those that sample, messages (`ludus_vllm.packed`).  Knows not: who
samples, when weights are published.
Invariant: a rank holds one message at a time, and one piece that is being put into it.

Each rank has a group of its own with all that sample, so that no rank receives what others send.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ludus.engines.nccl import BroadcastGroup, NcclGroup, load_library
from ludus.errors import UserError
from ludus.models.load import LoadedModel
from ludus.models.shards import is_copy, piece_of
from ludus.processes.allocator import give_free_back
from ludus.trainer.group import STEP_TIMEOUT_S, Rendezvous, TCPStore, on_interface
from ludus_vllm.packed import Announcement, grouped

# Of whole tensors that are sent together: a card receives them in a few milliseconds, and has room for two.
GROUP_BYTES = 256 << 20
_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Sent:
    """What one rank has sent."""

    messages: int
    largest_bytes: int
    """Of its largest message."""
    total_bytes: int
    peak_bytes: int | None
    """How much more memory the rank had at most while it sent than before. None: it was not measured."""


def announce(model: LoadedModel, num_ranks: int, *, most_bytes: int = GROUP_BYTES) -> Announcement:
    """What the ranks of a sharded model are going to send, whole tensors of at most so many bytes together.

    Raises UserError if files hold the model's weights in another form than the ranks do.
    """
    shapes = model.saved_shapes
    names = list(model.trainable)
    if any(model.saved_parts(name) != (saved,) for name, saved in zip(names, shapes, strict=False)):
        raise UserError(
            f"{model.config.architecture} keeps several weights of its files in one, which ranks cannot send in "
            "pieces; set engine.weights=auto"
        )
    parameters = list(model.trainable.values())
    return Announcement(
        names=list(shapes),
        dtype_names=[str(each.dtype).removeprefix("torch.") for each in parameters],
        shapes=[list(each.shape) for each in parameters],
        pieces=[
            [
                None if is_copy(each, rank) else [[span.start, span.stop] for span in piece_of(each, rank, num_ranks)]
                for rank in range(num_ranks)
            ]
            for each in parameters
        ],
        groups=grouped([each.numel() * each.element_size() for each in parameters], most_bytes),
    )


def send(
    announced: Announcement, rank: int, value: Callable[[str], Tensor], outlet: BroadcastGroup, device: torch.device
) -> Sent:
    """Send all that this rank has to. value: its piece of a weight, by the name that was announced."""
    sizes = []
    for group in announced.groups:
        message = announced.pack(group, rank, value, device)
        if message is not None:
            outlet.broadcast(message)
            sizes.append(len(message))
    return Sent(len(sizes), max(sizes, default=0), sum(sizes), None)


def receive(
    announced: Announcement, addresses: Sequence[Mapping[str, Any]], number: int = 1
) -> Iterator[tuple[str, Tensor]]:
    """Name and value of every tensor that is sent by gloo. number: of this receiver in the groups, from 1 on.

    addresses: of `gloo_addresses`, by rank. The senders wait until all receivers have joined.
    """
    inlets = [GlooGroup(address, number) for address in addresses]
    for group in announced.groups:
        yield from announced.receive(group, lambda sender, message: inlets[sender].broadcast(message), _CPU)


def gloo_addresses(meeting: Rendezvous, num_ranks: int, *, num_receivers: int = 1) -> list[dict[str, Any]]:
    """By rank, where it meets those that sample, around a store that somebody keeps open (`open_rendezvous`)."""
    return [
        {"kind": "gloo", **asdict(meeting), "name": f"outlet/{rank}", "size": num_receivers + 1}
        for rank in range(num_ranks)
    ]


def join(address: Mapping[str, Any], device: torch.device) -> BroadcastGroup:
    """This rank's group with all that sample, once these have joined; it is the first member.

    address: of `gloo_addresses`, or with `kind` nccl the `unique_id` in hex, and the `size` of the group.
    """
    if address["kind"] == "nccl":
        return NcclGroup(load_library(), bytes.fromhex(address["unique_id"]), address["size"], device)
    return GlooGroup(address, 0)


class GlooGroup:
    """A member of such a group between processors; the first one sends, the others receive by the same call."""

    def __init__(self, address: Mapping[str, Any], number: int) -> None:
        store = TCPStore(address["host"], address["port"], is_master=False, timeout=timedelta(seconds=60))
        timeout = timedelta(seconds=STEP_TIMEOUT_S)
        with on_interface(store, _CPU):
            shared = dist.PrefixStore(address["name"], store)  # type: ignore[attr-defined]
            self._group: Any = dist.ProcessGroupGloo(shared, number, address["size"], timeout)

    def broadcast(self, tensor: Tensor) -> None:
        how = dist.BroadcastOptions()
        how.rootRank, how.rootTensor = 0, 0
        self._group.broadcast([tensor], how).wait()

    def abort(self) -> None:
        self._group = None


@contextmanager
def measured() -> Iterator[Callable[[], int | None]]:
    """Within the block, how many bytes more this process had at most than at its beginning. None: nobody knows here."""
    give_free_back()  # messages would take what was held before, and seem to take nothing
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the peak counts from now on
        before = _resident("VmRSS")
    except OSError:
        yield lambda: None
        return
    yield lambda: max(0, _resident("VmHWM") - before)


def _resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    (kilobytes,) = (line.split()[1] for line in lines if line.startswith(f"{field}:"))
    return int(kilobytes) << 10
