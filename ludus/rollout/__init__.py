"""Playing: one episode, many episodes in groups, how far they may run ahead."""

from ludus.rollout.pool import Discarded, RolloutPool, Taken
from ludus.rollout.runner import EpisodeRunner
from ludus.rollout.settings import AgentSettings, GenerationSettings, RolloutSettings
from ludus.rollout.stage import Stage
from ludus.rollout.staleness import RolloutCounts, num_admissible_groups, oldest_trainable_version
from ludus.rollout.tasks import EpisodeTask, GroupStream, GroupTask, Row, derive_seed

__all__ = [
    "AgentSettings",
    "Discarded",
    "EpisodeRunner",
    "EpisodeTask",
    "GenerationSettings",
    "GroupStream",
    "GroupTask",
    "RolloutCounts",
    "RolloutPool",
    "RolloutSettings",
    "Row",
    "Stage",
    "Taken",
    "derive_seed",
    "num_admissible_groups",
    "oldest_trainable_version",
]
