"""Credit, advantages, weights and packing as pure functions, without tensors.

The loss and its corrections are functions of tensors; they are imported from `ludus.algo.loss` and
`ludus.algo.correction`, so that this package imports without torch.
"""

from ludus.algo.advantage import Baseline, Scale, group_advantages
from ludus.algo.pack import Batch, PackedRow, TrainSequence, pack
from ludus.algo.returns import assign_outcome_reward, turn_returns
from ludus.algo.weights import Normaliser, episode_weights

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
