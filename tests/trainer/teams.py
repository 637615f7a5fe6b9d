"""Teams of ranks as tests train with them, on processes that are kept from test to test, and what one rank does."""

from __future__ import annotations

import json
import subprocess
import sys
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ludus.algorithms.pack import Batch, TrainSequence, pack
from ludus.algorithms.settings import AlgorithmSettings
from ludus.engines.lease import ComputeLease
from ludus.models.load import load_model
from ludus.models.settings import LoraSettings, ModelSettings
from ludus.models.shards import shard_model
from ludus.runs.tokens import TokenColumns
from ludus.trainer.critic import CriticModel, load_critic
from ludus.trainer.group import TorchRanks, open_rendezvous
from ludus.trainer.settings import CriticSettings, TrainerSettings
from ludus.trainer.sharded import ShardedTrainer
from ludus.trainer.step import ModelTrainer

FOLLOWER = Path(__file__).parent / "follower.py"
COUNT = 6
SETTINGS: dict[str, Any] = {"optimizer": {"lr": 1e-2, "max_grad_norm": None}}


class Team:
    """Processes that follow, kept from test to test: starting one costs seconds."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[str]] = []

    def grow(self, count: int) -> None:
        while len(self.processes) < count:
            self.processes.append(subprocess.Popen([sys.executable, str(FOLLOWER)], stdin=subprocess.PIPE, text=True))

    def check(self) -> None:
        assert all(each.poll() is None for each in self.processes), "a follower has ended"

    def end(self) -> None:
        for each in self.processes:
            assert each.stdin is not None
            each.stdin.close()
            each.kill()
            each.wait()
        self.processes.clear()


@contextmanager
def sharded(
    team: Team,
    folder: Path,
    size: int,
    *,
    lora: int | None = None,
    dtype: str = "float32",
    algorithm: dict[str, Any] | None = None,
    critic: dict[str, Any] | None = None,
    split: dict[str, int] | None = None,
    device: str = "cpu",
    **settings: Any,
) -> Iterator[ShardedTrainer]:
    """device: cuda: each rank has the card of its number."""
    team.grow(size - 1)
    rendezvous, store = open_rendezvous("127.0.0.1")
    settings = {**SETTINGS, **settings}
    for rank, process in enumerate(team.processes[: size - 1], start=1):
        about = {"rendezvous": asdict(rendezvous), "rank": rank, "size": size, "folder": str(folder), "lora": lora}
        assert process.stdin is not None
        about |= {
            "device": numbered(device, rank),
            "dtype": dtype,
            "settings": settings,
            "algorithm": algorithm,
            "critic": critic,
            "split": split or {},
        }
        process.stdin.write(json.dumps(about) + "\n")
        process.stdin.flush()
    own_device = numbered(device, 0)
    ranks = TorchRanks.lead(store, size, torch.device(own_device), check=team.check, **(split or {}))
    adapters = None if lora is None else LoraSettings(rank=lora, alpha=8)
    chosen = ModelSettings(path=str(folder), dtype=dtype, lora=adapters, device=own_device)
    cut = shard_model(load_model(chosen, is_mapped=True), ranks.groups)
    beside = None
    if critic is not None:
        beside = load_critic(chosen, CriticSettings(**critic), is_mapped=True)
        if isinstance(beside, CriticModel):
            beside = replace(beside, model=shard_model(beside.model, ranks.groups))
    algorithm = AlgorithmSettings(**(algorithm or {}))
    own = ModelTrainer(cut, TrainerSettings(**settings), algorithm, lease=ComputeLease(), ranks=ranks, critic=beside)
    trainer = ShardedTrainer(own, ranks)
    try:
        yield trainer
    finally:
        trainer.close()


def numbered(device: str, rank: int) -> str:
    return f"{device}:{rank}" if device == "cuda" else device


def whole(
    folder: Path,
    *,
    lora: int | None = None,
    dtype: str = "float32",
    algorithm: dict[str, Any] | None = None,
    critic: dict[str, Any] | None = None,
    **settings: Any,
) -> ModelTrainer:
    adapters = None if lora is None else LoraSettings(rank=lora, alpha=8)
    model = ModelSettings(path=str(folder), dtype=dtype, lora=adapters)
    chosen = AlgorithmSettings(**(algorithm or {}))
    beside = None if critic is None else load_critic(model, CriticSettings(**critic))
    how = TrainerSettings(**{**SETTINGS, **settings})
    return ModelTrainer(load_model(model), how, chosen, lease=ComputeLease(), critic=beside)


def sequences(count: int) -> list[TrainSequence]:
    """Of unequal lengths, some of which share their beginning."""
    made = []
    for number in range(count):
        length = 12 + 9 * number
        ids = (*range(5, 15), *((number * 37 + 11 * at) % 380 + 3 for at in range(length)))
        targets = tuple(range(10, len(ids), 1 + number % 3))
        made.append(
            TrainSequence(
                token_ids=ids,
                target_idx=targets,
                advantages=((-1.0) ** number * (1 + number / 4),) * len(targets),
                weights=(1 / 150,) * len(targets),
                logprobs=tuple(-5.0 - 0.01 * at for at in targets),
                versions=(0,) * len(targets),
                temperatures=(1.0,) * len(targets),
                turns=(number,) * len(targets),
                episodes=(number // 2,) * len(targets),
                groups=(number // 4,) * len(targets),
            )
        )
    return made


def batch(row_tokens: int = 64, count: int = COUNT) -> Batch:
    return Batch.of(pack(sequences(count), row_tokens=row_tokens), version=0)


def relative_difference(left: dict[str, Tensor], right: dict[str, Tensor]) -> float:
    """Norm of the difference of all weights over that of all of them."""
    assert left.keys() == right.keys()
    difference = sum(float((left[name] - right[name]).double().square().sum()) for name in left)
    return (difference / sum(float(right[name].double().square().sum()) for name in right)) ** 0.5


def weights(trainer: ModelTrainer | ShardedTrainer) -> dict[str, Tensor]:
    return {name: each.clone() for name, each in trainer.publish().named_tensors()}


def by_turn(kept: TokenColumns) -> dict[int, dict[str, list[float]]]:
    columns = {name: array("f", data).tolist() for name, data in kept.columns.items()}
    starts = [0, *accumulate(count for _, count in kept.turns)]
    return {
        turn: {name: column[start : start + count] for name, column in columns.items()}
        for (turn, count), start in zip(kept.turns, starts, strict=False)
    }
