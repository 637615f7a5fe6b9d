"""Algorithms as data: credit, advantages, losses, corrections, weights and packing, all of them pure functions.

A new estimator, loss, correction or normaliser is one file and its line in `table`; `algorithm_of` composes them.
Nothing here imports torch: functions of tensors use the tensors' own methods.
"""

from ludus.algorithms.base import Algorithm, GroupReturns, LossInputs, Needs, TokenAdvantages
from ludus.algorithms.pack import Batch, PackedRow, TrainSequence, pack
from ludus.algorithms.resolve import algorithm_of
from ludus.algorithms.returns import turn_returns
from ludus.algorithms.settings import AlgorithmSettings, KlSettings

__all__ = [
    "Algorithm",
    "AlgorithmSettings",
    "Batch",
    "GroupReturns",
    "KlSettings",
    "LossInputs",
    "Needs",
    "PackedRow",
    "TokenAdvantages",
    "TrainSequence",
    "algorithm_of",
    "pack",
    "turn_returns",
]
