"""A process that follows one team of ranks after the other: a line of JSON on its standard input is one team."""

import json
import sys
from dataclasses import replace
from typing import Any

import torch

from ludus.algorithms.settings import AlgorithmSettings
from ludus.engines.lease import ComputeLease
from ludus.models.load import LoadedModel, load_model
from ludus.models.settings import LoraSettings, ModelSettings
from ludus.models.shards import shard_model
from ludus.trainer.critic import CriticModel, load_critic
from ludus.trainer.group import Rendezvous, TorchRanks
from ludus.trainer.settings import CriticSettings, TrainerSettings
from ludus.trainer.sharded import follow_commands
from ludus.trainer.step import ModelTrainer


def cut_model(folder: str, ranks: TorchRanks, lora: int | None, dtype: str) -> LoadedModel:
    return shard_model(load_model(_settings(folder, lora, dtype), is_mapped=True), ranks.groups)


def cut_critic(
    folder: str, ranks: TorchRanks, lora: int | None, dtype: str, critic: dict[str, Any] | None
) -> CriticModel | CriticSettings | None:
    if critic is None:
        return None
    loaded = load_critic(_settings(folder, lora, dtype), CriticSettings(**critic), is_mapped=True)
    if isinstance(loaded, CriticSettings):
        return loaded
    return replace(loaded, model=shard_model(loaded.model, ranks.groups))


def _settings(folder: str, lora: int | None, dtype: str) -> ModelSettings:
    adapters = None if lora is None else LoraSettings(rank=lora, alpha=8)
    return ModelSettings(path=folder, dtype=dtype, lora=adapters)


def main() -> None:
    torch.set_num_threads(1)
    for line in sys.stdin:
        team = json.loads(line)
        place = (Rendezvous(**team["rendezvous"]), team["rank"], team["size"], torch.device("cpu"))
        ranks = TorchRanks.follow(*place, **team["split"])
        of_model = (team["folder"], ranks, team["lora"], team["dtype"])
        model, critic = cut_model(*of_model), cut_critic(*of_model, team["critic"])
        settings, algorithm = TrainerSettings(**team["settings"]), AlgorithmSettings(**(team["algorithm"] or {}))
        own = ModelTrainer(model, settings, algorithm, lease=ComputeLease(), ranks=ranks, critic=critic)
        follow_commands(own, ranks)


if __name__ == "__main__":
    main()
