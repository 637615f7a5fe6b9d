"""The names of `art`: `import ludus.art as art` in the place of `import art`."""

from ludus.agents.trajectory import (
    History,
    Messages,
    MessagesAndChoices,
    Tools,
    Trajectory,
    TrajectoryGroup,
    auto_trajectory,
    capture_auto_trajectory,
    capture_yielded_trajectory,
    gather_trajectories,
    gather_trajectory_groups,
    retry,
    trajectory_group_batches,
    yield_trajectory,
)
from ludus.api.backends import Backend, LocalBackend, ServerBackend, TrainConfig, TrainResult, TrainSFTConfig
from ludus.api.model import Model, TrainableModel
from ludus.art import dev as dev  # `art.dev.…` without an import of its own, as there

__all__ = [
    "Backend",
    "History",
    "LocalBackend",
    "Messages",
    "MessagesAndChoices",
    "Model",
    "ServerBackend",
    "Tools",
    "TrainConfig",
    "TrainResult",
    "TrainSFTConfig",
    "TrainableModel",
    "Trajectory",
    "TrajectoryGroup",
    "auto_trajectory",
    "capture_auto_trajectory",
    "capture_yielded_trajectory",
    "gather_trajectories",
    "gather_trajectory_groups",
    "retry",
    "trajectory_group_batches",
    "yield_trajectory",
]
