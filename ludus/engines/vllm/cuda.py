"""How new weights reach a vLLM server from card to card, without a file: by NCCL, or by CUDA's shared memory.

Knows: vLLM's `nccl` transfer (0.32), our plugin's `ludus_nccl` and `ludus_ipc`.  Knows not: calls, tokens, when weights
are published.
Invariant: what is announced is what is sent, tensor by tensor in one order.
"""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import httpx

from ludus.engines.base import RankWeights, WeightSource
from ludus.engines.http.base import parse_object
from ludus.engines.nccl import BroadcastGroup, NcclGroup, load_library, new_unique_id
from ludus.engines.vllm.weights import Transfer, begin, post
from ludus.engines.weights import buckets
from ludus.errors import BackendError, UserError

BUCKET_BYTES = 2**30  # of tensors that are shared at once, and so held at once beside the trainer's own
JOIN_S = 180.0  # workers that have loaded a model join within seconds, unless they do not reach the trainer
ResultT = TypeVar("ResultT")


Join = Callable[[bytes, int, Any], BroadcastGroup]
"""(id of the group, its size, the trainer's card): the group, once all have joined."""


def join_by_nccl(unique_id: bytes, world_size: int, device: Any) -> BroadcastGroup:
    return NcclGroup(load_library(), unique_id, world_size, device)


@dataclass(frozen=True, slots=True)
class _Ranks:
    """The groups of all ranks of a trainer with the workers of one server."""

    weights: RankWeights
    name: str

    @classmethod
    def join(cls, weights: RankWeights, name: str, ids: Sequence[bytes], world_size: int) -> _Ranks:
        weights.join(name, [{"kind": "nccl", "unique_id": each.hex(), "size": world_size} for each in ids])
        return cls(weights, name)

    def send(self, weights: WeightSource, announced: Mapping[str, Any]) -> None:
        assert isinstance(weights, RankWeights), "a trainer has several ranks or one"
        weights.broadcast(self.name, announced)

    def abort(self) -> None:
        self.weights.leave(self.name)


class NcclTransfer(Transfer):
    """All weights, broadcast to the workers of a server, which may be on other machines: tensor by tensor, or by every
    rank of a trainer in pieces."""

    def __init__(
        self,
        *,
        make_id: Callable[[], bytes] = lambda: new_unique_id(load_library()),
        join: Join = join_by_nccl,
        join_s: float = JOIN_S,
    ) -> None:
        """join_s: how long the workers may take to join."""
        self._make_id = make_id
        self._join = join
        self._join_s = join_s
        self._group: BroadcastGroup | _Ranks | None = None
        """None: the workers have not been asked to join."""
        self._announced: Mapping[str, Any] = {}

    async def begin(self, http: httpx.AsyncClient, weights: WeightSource) -> None:
        """Everybody joins at the same time, or waits for the others. Raises BackendError if one never comes."""
        answer = await http.get("/get_world_size")
        world_size = int(parse_object(answer)["world_size"]) + 1
        join: Callable[[], BroadcastGroup | _Ranks]
        if isinstance(weights, RankWeights):
            self._announced = await asyncio.to_thread(weights.announce)
            ids = [self._make_id() for _ in range(weights.num_ranks)]
            join = partial(_Ranks.join, weights, str(http.base_url), ids, world_size)
        else:
            self._announced, device = await asyncio.to_thread(_described, weights.named_tensors())
            ids = [self._make_id()]
            join = partial(self._join, ids[0], world_size, device)
        first, *others = (base64.b64encode(each).decode() for each in ids)
        shared = {"nccl_unique_id_b64": first, "rank_offset": 1, "packed": False, "world_size": world_size}
        more = {"more_unique_ids_b64": others} if others else {}
        try:
            async with asyncio.timeout(self._join_s):
                self._group, _ = await both(on_thread(join), begin(http, {**shared, **more}))
        except TimeoutError:
            raise BackendError(
                f"the trainer and the {world_size - 1} workers of the vLLM at {http.base_url} were not joined by NCCL "
                f"within {self._join_s:.0f} s: look into the server's log for a worker that failed. Where they do not "
                "reach each other, NCCL_SOCKET_IFNAME names the network to take, for both, and NCCL_DEBUG=INFO tells "
                "what was tried"
            ) from None

    async def carry(self, http: httpx.AsyncClient, weights: WeightSource) -> None:
        # They receive while we send; where they fail first, nobody receives and sending would not end.
        try:
            receiving = post(http, "/update_weights", {"update_info": self._announced})
            await both(on_thread(lambda: self._send(weights)), receiving)
        except BaseException:
            self._leave()
            raise

    def forget(self) -> None:
        super().forget()
        self._leave()

    def _leave(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            group.abort()

    def _send(self, weights: WeightSource) -> None:
        group = self._group
        if group is None:
            raise BackendError("weights were broken off before, so NCCL cannot send any; start the server again")
        if isinstance(group, _Ranks):
            group.send(weights, self._announced)
            return
        announced = zip(self._announced["names"], self._announced["shapes"], strict=True)
        for (name, tensor), (known, shape) in zip(weights.named_tensors(), announced, strict=True):
            if name != known or list(tensor.shape) != shape:
                raise BackendError(f"the trainer sends {name} {list(tensor.shape)} where {known} {shape} was announced")
            group.broadcast(tensor)


class IpcTransfer(Transfer):
    """All weights, through the memory of a card that trainer and server share; nothing but handles is sent."""

    async def begin(self, http: httpx.AsyncClient, weights: WeightSource) -> None:
        await begin(http, {"packed": False})

    async def carry(self, http: httpx.AsyncClient, weights: WeightSource) -> None:
        left = buckets(weights.named_tensors(), BUCKET_BYTES)
        while bucket := await asyncio.to_thread(next, left, None):
            shared = await asyncio.to_thread(_shared, bucket)
            await post(http, "/update_weights", {"update_info": shared})  # they are held until they are read


async def on_thread(work: Callable[[], ResultT]) -> ResultT:
    """What `work` returns, from a thread that keeps nobody from ending: a call to NCCL waits for ever where a peer is
    gone."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[ResultT] = loop.create_future()

    def run() -> None:
        try:
            settle = partial(_settle, done, work(), None)
        except BaseException as error:  # it is raised by who waits
            settle = partial(_settle, done, None, error)
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle)

    threading.Thread(target=run, name="ludus-nccl", daemon=True).start()
    return await done


def _settle(done: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(result)
    else:
        done.set_exception(error)


async def both(ours: Coroutine[Any, Any, ResultT], theirs: Coroutine[Any, Any, object]) -> tuple[ResultT, object]:
    """What both return. As soon as one fails the other is given up, and its error raised."""
    works: tuple[asyncio.Future[ResultT], asyncio.Future[object]] = (
        asyncio.ensure_future(ours),
        asyncio.ensure_future(theirs),
    )
    try:
        await asyncio.wait(works, return_when=asyncio.FIRST_EXCEPTION)
        for work in works:
            if work.done():
                work.result()
        return works[0].result(), works[1].result()
    finally:
        for work in works:
            work.cancel()


def _described(tensors: Iterable[tuple[str, Any]]) -> tuple[Mapping[str, Any], Any]:
    """Names, types and shapes of all tensors, and the card they are on. Raises UserError for one that is on none."""
    names, dtypes, shapes, device = [], [], [], None
    for name, tensor in tensors:
        if tensor.device.type != "cuda":
            raise UserError(
                f"{name} is on {tensor.device}: weights that travel by nccl or ipc come from a CUDA card; set "
                "model.device, or engine.weights=auto"
            )
        names.append(name)
        dtypes.append(str(tensor.dtype).removeprefix("torch."))
        shapes.append(list(tensor.shape))
        device = tensor.device
    return {"names": names, "dtype_names": dtypes, "shapes": shapes}, device


def _shared(tensors: list[tuple[str, Any]]) -> dict[str, Any]:
    """The tensors as handles of CUDA's, in JSON: a pickle, as vLLM's own transfer sends it, may run anything."""
    import torch
    from torch.multiprocessing.reductions import reduce_tensor

    bucket, handles = [(name, tensor.detach().contiguous()) for name, tensor in tensors], []
    about, device = _described(bucket)
    for _, tensor in bucket:
        _, parts = reduce_tensor(tensor)  # type: ignore[no-untyped-call]
        _, size, stride, offset, _, dtype, _, *storage = parts
        handles.append(
            {
                "size": list(size),
                "stride": list(stride),
                "offset": offset,
                "dtype": str(dtype).removeprefix("torch."),
                "storage": [base64.b64encode(each).decode() if isinstance(each, bytes) else each for each in storage],
            }
        )
    torch.cuda.synchronize(device)  # what was cast is there
    return {**about, "card": str(torch.cuda.get_device_properties(device).uuid), "handles": handles}
