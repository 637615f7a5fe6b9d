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


def cut_model(settings: ModelSettings, ranks: TorchRanks) -> LoadedModel:
    return shard_model(load_model(settings, is_mapped=True), ranks.groups)


def cut_critic(
    settings: ModelSettings, ranks: TorchRanks, critic: dict[str, Any] | None
) -> CriticModel | CriticSettings | None:
    if critic is None:
        return None
    loaded = load_critic(settings, CriticSettings(**critic), is_mapped=True)
    if isinstance(loaded, CriticSettings):
        return loaded
    return replace(loaded, model=shard_model(loaded.model, ranks.groups))


def model_settings(team: dict[str, Any]) -> ModelSettings:
    adapters = None if team["lora"] is None else LoraSettings(rank=team["lora"], alpha=8)
    return ModelSettings(path=team["folder"], dtype=team["dtype"], lora=adapters, device=team["device"])


def main() -> None:
    torch.set_num_threads(1)
    for line in sys.stdin:
        team = json.loads(line)
        place = (Rendezvous(**team["rendezvous"]), team["rank"], team["size"], torch.device(team["device"]))
        ranks = TorchRanks.follow(*place, **team["split"])
        of_model = model_settings(team)
        model, critic = cut_model(of_model, ranks), cut_critic(of_model, ranks, team["critic"])
        settings, algorithm = TrainerSettings(**team["settings"]), AlgorithmSettings(**(team["algorithm"] or {}))
        own = ModelTrainer(model, settings, algorithm, lease=ComputeLease(), ranks=ranks, critic=critic)
        follow_commands(own, ranks)


if __name__ == "__main__":
    main()
