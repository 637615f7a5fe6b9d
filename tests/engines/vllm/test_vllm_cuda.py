"""Weights from card to card: what vLLM is sent and when, with the card's and NCCL's part played by others."""

from __future__ import annotations

import asyncio
import base64
import importlib
import json
import sys
import threading
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, make_dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from ludus.engines.nccl import load_library
from ludus.engines.vllm.cuda import NcclTransfer
from ludus.engines.vllm.delivery import vllm_delivery
from ludus.engines.vllm.engine import VllmEngine
from ludus.engines.vllm.settings import VllmSettings
from ludus.engines.weights import buckets
from ludus.errors import BackendError, UserError
from ludus.text.tokenizer import Tokenizer
from ludus_vllm.packed import Announcement
from tests.engines.contract import call
from tests.engines.vllm.vllm_fields import RECORD
from tests.engines.vllm.vllm_server import StandIn

UNIQUE_ID = bytes(range(128))


@dataclass
class OnCard:
    """A tensor that says it is on a card."""

    values: torch.Tensor

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", 0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.values, name)


@dataclass
class Source:
    shape: tuple[int, ...] = (4,)

    def named_tensors(self) -> Iterable[tuple[str, Any]]:
        yield "model.norm.weight", OnCard(torch.ones(self.shape))
        yield "model.embed_tokens.weight", OnCard(torch.ones(2, 3, dtype=torch.bfloat16))

    def copy_into_shared(self) -> None:
        pass


@dataclass
class BroadcastGroup:
    """What is broadcast, in the place of NCCL."""

    joined: list[tuple[bytes, int, Any]] = field(default_factory=list)
    sent: list[tuple[int, ...]] = field(default_factory=list)
    num_aborted: int = 0

    def join(self, unique_id: bytes, world_size: int, device: Any) -> BroadcastGroup:
        self.joined.append((unique_id, world_size, device))
        return self

    def broadcast(self, tensor: Any) -> None:
        self.sent.append(tuple(tensor.shape))

    def abort(self) -> None:
        self.num_aborted += 1


@pytest.fixture
def stand_in(tokenizer: Tokenizer) -> StandIn:
    return StandIn(lambda _: [5, 6, 7], tokenizer)


def test_weights_are_broadcast_while_they_are_received(url: str, stand_in: StandIn, tokenizer: Tokenizer) -> None:
    """All join once by one id; then each version is announced by names, types and shapes and sent in that order."""
    group = BroadcastGroup()

    async def scenario() -> None:
        transfer = NcclTransfer(make_id=lambda: UNIQUE_ID, join=group.join)
        engine = VllmEngine.connect(url, tokenizer, transfer=transfer)
        for version in (0, 1):
            await engine.publish(version, Source())
            assert set((await engine.generate(call(f"call {version}"))).versions) == {version}
        await engine.close()

    asyncio.run(scenario())
    assert group.joined == [(UNIQUE_ID, 3, torch.device("cuda", 0))]
    assert group.sent == [(4,), (2, 3)] * 2
    begun, *updates = stand_in.loaded
    shared = {"nccl_unique_id_b64": base64.b64encode(UNIQUE_ID).decode(), "rank_offset": 1, "packed": False}
    assert begun == ("/init_weight_transfer_engine", {"init_info": {**shared, "world_size": 3}})
    told = {
        "names": ["model.norm.weight", "model.embed_tokens.weight"],
        "dtype_names": ["float32", "bfloat16"],
        "shapes": [[4], [2, 3]],
    }
    paths = ["/start_weight_update", "/update_weights", "/finish_weight_update"]
    assert [path for path, _ in updates] == paths * 2
    assert [body for path, body in updates if path == "/update_weights"] == [{"update_info": told}] * 2


def test_weights_on_a_processor_cannot_be_broadcast(url: str, tokenizer: Tokenizer) -> None:
    """It says so before anybody waits for the others."""

    class OnProcessor(Source):
        def named_tensors(self) -> Iterable[tuple[str, Any]]:
            yield "model.norm.weight", torch.ones(4)

    async def scenario() -> None:
        engine = VllmEngine.connect(url, tokenizer, transfer=NcclTransfer(join=BroadcastGroup().join))
        with pytest.raises(UserError, match=r"is on cpu: .* come from a CUDA card"):
            await engine.publish(0, OnProcessor())
        await engine.close()

    asyncio.run(scenario())


def test_a_peer_that_never_joins_is_given_up(url: str, tokenizer: Tokenizer) -> None:
    """After a time, with the server's name and what to look at; what waits for it keeps nobody from ending."""
    gone = threading.Event()

    def join(*_: Any) -> BroadcastGroup:
        gone.wait(60)
        return BroadcastGroup()

    async def scenario() -> None:
        transfer = NcclTransfer(make_id=lambda: UNIQUE_ID, join=join, join_s=0.05)
        engine = VllmEngine.connect(url, tokenizer, transfer=transfer)
        with pytest.raises(BackendError, match=rf"2 workers of the vLLM at {url}.* within 0 s.*NCCL_SOCKET_IFNAME"):
            await engine.publish(0, Source())
        await engine.close()

    asyncio.run(scenario())
    assert all(each.daemon for each in threading.enumerate() if each.name == "ludus-nccl")
    gone.set()


def test_an_update_that_fails_leaves_the_group(url: str, stand_in: StandIn, tokenizer: Tokenizer) -> None:
    """Whoever still sends is released, by whichever side failed."""
    group = BroadcastGroup()

    async def scenario() -> None:
        transfer = NcclTransfer(make_id=lambda: UNIQUE_ID, join=group.join)
        engine = VllmEngine.connect(url, tokenizer, transfer=transfer)
        await engine.publish(0, Source())
        with pytest.raises(BackendError, match=r"sends model.norm.weight \[5\] where model.norm.weight \[4\]"):
            await engine.publish(1, Source((5,)))
        assert group.num_aborted == 1
        with pytest.raises(BackendError, match="start the server again"):
            await engine.publish(1, Source())
        transfer.forget()
        await engine.publish(1, Source())
        await engine.close()

    asyncio.run(scenario())
    assert len(group.joined) == 2


@dataclass
class OfRanks(Source):
    """Weights of two ranks, each of which has half of one matrix."""

    num_ranks: int = 2
    joined: list[tuple[str, Any]] = field(default_factory=list)
    sent: list[tuple[str, Any]] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    def named_tensors(self) -> Iterable[tuple[str, Any]]:
        raise AssertionError("nobody gathers them")

    def announce(self) -> dict[str, Any]:
        return asdict(Announcement(["w"], ["bfloat16"], [[4, 6]], [[[[0, 2]], [[2, 4]]]], [[0]]))

    def join(self, name: str, addresses: Any) -> None:
        self.joined.append((name, addresses))

    def broadcast(self, name: str, announced: Any) -> None:
        self.sent.append((name, announced))

    def leave(self, name: str) -> None:
        self.left.append(name)


def test_every_rank_sends_by_itself(url: str, stand_in: StandIn, tokenizer: Tokenizer) -> None:
    """Each joins the workers in a group of its own, and vLLM is told what comes from whom."""
    ids, weights = iter([UNIQUE_ID, UNIQUE_ID[::-1]]), OfRanks()

    async def scenario() -> None:
        transfer = NcclTransfer(make_id=lambda: next(ids), join=BroadcastGroup().join)
        engine = VllmEngine.connect(url, tokenizer, transfer=transfer)
        await engine.publish(0, weights)
        await engine.publish(1, weights)
        transfer.forget()
        await engine.close()

    asyncio.run(scenario())
    first, second = ({"kind": "nccl", "unique_id": each.hex(), "size": 3} for each in (UNIQUE_ID, UNIQUE_ID[::-1]))
    ((name, addresses),) = weights.joined
    assert addresses == [first, second]
    assert weights.sent == [(name, weights.announce())] * 2 and weights.left == [name]
    begun, *updates = stand_in.loaded
    one, other = (base64.b64encode(each).decode() for each in (UNIQUE_ID, UNIQUE_ID[::-1]))
    shared = {"nccl_unique_id_b64": one, "more_unique_ids_b64": [other], "rank_offset": 1, "packed": False}
    assert begun == ("/init_weight_transfer_engine", {"init_info": {**shared, "world_size": 3}})
    told = [body for path, body in updates if path == "/update_weights"]
    assert told == [{"update_info": json.loads(json.dumps(weights.announce()))}] * 2


@pytest.fixture
def of_vllm(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Stand-ins for vLLM's own NCCL transfer, with the fields that its wheel has; the groups that it has made, each of
    which receives what is in its `messages`."""
    made: list[Any] = []

    class Engine:
        model_update_group: Any = None
        parallel_config = "parallel"
        device = torch.device("cpu")

        def init_transfer_engine(self, info: Any) -> None:
            self.model_update_group = join(info, self.parallel_config)

        def receive_weights(self, info: Any) -> None:
            made.append(("whole", info.names))

        def shutdown(self) -> None:
            self.model_update_group.destroy()

    def join(info: Any, parallel: str) -> Any:
        assert parallel == "parallel"
        made.append(SimpleNamespace(id=info.nccl_unique_id_b64, size=info.world_size, messages=[], is_gone=False))
        made[-1].broadcast = lambda message, src, stream: message.copy_(made_of(info).messages.pop(0))
        made[-1].destroy = lambda: setattr(made_of(info), "is_gone", True)
        return made[-1]

    def made_of(info: Any) -> Any:
        return next(each for each in made if each.id == info.nccl_unique_id_b64)

    known = json.loads(RECORD.read_text())["classes"]
    kinds = {
        name: make_dataclass(name, [(each, Any, None) for each in known[name]], kw_only=True)
        for name in ("NCCLWeightTransferInitInfo", "NCCLWeightTransferUpdateInfo")
    }
    common = SimpleNamespace(worker_init_process_group=join, **kinds)
    for name in ("vllm", "vllm.distributed", "vllm.distributed.weight_transfer"):
        monkeypatch.setitem(sys.modules, name, cast(Any, SimpleNamespace()))
    for part in ("nccl_common", "nccl_engine"):
        stub = SimpleNamespace(NCCLWeightTransferEngine=Engine, **vars(common))
        monkeypatch.setitem(sys.modules, f"vllm.distributed.weight_transfer.{part}", cast(Any, stub))
    monkeypatch.delitem(sys.modules, "ludus_vllm.ranks", raising=False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    return made


def test_pieces_are_put_together_in_vllm(of_vllm: list[Any]) -> None:
    """By the plugin: a message of each rank, from its own group; one rank alone sends whole tensors as before."""
    ranks = importlib.import_module("ludus_vllm.ranks")
    engine, loaded = ranks.RankWeights(), dict[str, torch.Tensor]()
    engine.model = SimpleNamespace(load_weights=lambda tensors: loaded.update(tensors))
    info = ranks.RanksInfo(nccl_unique_id_b64="a", more_unique_ids_b64=["b"], world_size=3, rank_offset=1, packed=False)
    engine.init_transfer_engine(info)
    assert [(group.id, group.size) for group in of_vllm] == [("a", 3), ("b", 3)]
    announced = OfRanks().announce()
    whole, about = torch.randn(4, 6).bfloat16(), Announcement(**announced)
    for sender, group in enumerate(of_vllm):
        message = about.pack([0], sender, lambda _, at=sender: whole[2 * at : 2 * at + 2], torch.device("cpu"))
        group.messages.append(message)
    engine.receive_weights(ranks.PiecesInfo(**announced))
    assert torch.equal(loaded["w"], whole)
    engine.receive_weights(ranks.PiecesInfo(names=["w"], dtype_names=["bfloat16"], shapes=[[4, 6]]))
    assert of_vllm.pop() == ("whole", ["w"])
    engine.shutdown()
    assert all(group.is_gone for group in of_vllm)


def test_settings_choose_the_way(tmp_path: Path) -> None:
    """nccl and ipc need no files."""
    for route, name in (("nccl", "NcclTransfer"), ("ipc", "IpcTransfer")):
        found = vllm_delivery(VllmSettings(weights=route), None)
        assert type(found["transfer"]).__name__ == name and found["keep_kv"] is True


def test_few_tensors_are_shared_at_once() -> None:
    """Buckets keep the order and stay below their bound, but for a tensor that is larger by itself."""
    sizes = [10, 10, 30, 5, 5, 5]
    tensors = [(str(idx), OnCard(torch.ones(size, dtype=torch.uint8))) for idx, size in enumerate(sizes)]
    found = [[name for name, _ in bucket] for bucket in buckets(tensors, 20)]
    assert found == [["0", "1"], ["2"], ["3", "4", "5"]]


def test_without_nccl_it_says_what_is_missing() -> None:
    """A machine without CUDA has no such library."""
    with pytest.raises(UserError, match="comes with torch for CUDA"):
        load_library("libnccl-that-is-not-there.so")
