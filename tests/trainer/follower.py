"""A process that follows one team of ranks after the other: a line of JSON on its standard input is one team."""

import json
import sys

import torch

from ludus.algorithms.settings import AlgorithmSettings
from ludus.engines.lease import ComputeLease
from ludus.models.load import LoadedModel, load_model
from ludus.models.settings import LoraSettings, ModelSettings
from ludus.models.shards import shard_model
from ludus.trainer.group import Rendezvous, TorchRanks
from ludus.trainer.settings import TrainerSettings
from ludus.trainer.sharded import follow_commands
from ludus.trainer.step import ModelTrainer


def cut_model(folder: str, ranks: TorchRanks, lora: int | None, dtype: str) -> LoadedModel:
    adapters = None if lora is None else LoraSettings(rank=lora, alpha=8)
    model = load_model(ModelSettings(path=folder, dtype=dtype, lora=adapters), is_mapped=True)
    return shard_model(model, ranks.mesh)


def main() -> None:
    torch.set_num_threads(1)
    for line in sys.stdin:
        team = json.loads(line)
        ranks = TorchRanks.follow(Rendezvous(**team["rendezvous"]), team["rank"], team["size"], torch.device("cpu"))
        model = cut_model(team["folder"], ranks, team["lora"], team["dtype"])
        settings, algorithm = TrainerSettings(**team["settings"]), AlgorithmSettings(**(team["algorithm"] or {}))
        follow_commands(ModelTrainer(model, settings, algorithm, lease=ComputeLease(), ranks=ranks), ranks)


if __name__ == "__main__":
    main()
