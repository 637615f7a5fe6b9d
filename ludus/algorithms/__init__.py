"""Credit, advantages, weights and packing as pure functions, without tensors.

The loss and its corrections are functions of tensors; they are imported from `ludus.algorithms.loss` and
`ludus.algorithms.correction`, so that this package imports without torch.
"""

from ludus.algorithms.advantage import Baseline, Scale, group_advantages
from ludus.algorithms.pack import Batch, PackedRow, TrainSequence, pack
from ludus.algorithms.returns import assign_outcome_reward, turn_returns
from ludus.algorithms.weights import Normaliser, episode_weights

__all__ = [
    "Baseline",
    "Batch",
    "Normaliser",
    "PackedRow",
    "Scale",
    "TrainSequence",
    "assign_outcome_reward",
    "episode_weights",
    "group_advantages",
    "pack",
    "turn_returns",
]
