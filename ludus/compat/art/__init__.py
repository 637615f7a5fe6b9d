"""The names of `art`: `import ludus.compat.art as art` in the place of `import art`."""

from typing import TYPE_CHECKING

from ludus.compat.art import dev as dev  # `art.dev.…` without an import of its own, as there
from ludus.compat.lazy import lazily

if TYPE_CHECKING:
    from ludus.compat.art.backends import Backend, TrainConfig, TrainResult, TrainSFTConfig
    from ludus.compat.art.batching import trajectory_group_batches
    from ludus.compat.art.capture import (
        auto_trajectory,
        capture_auto_trajectory,
        capture_yielded_trajectory,
        yield_trajectory,
    )
    from ludus.compat.art.choice import Messages, MessagesAndChoices, Tools
    from ludus.compat.art.gathering import gather_trajectories, gather_trajectory_groups
    from ludus.compat.art.group import TrajectoryGroup
    from ludus.compat.art.local_backend import LocalBackend
    from ludus.compat.art.retrying import retry
    from ludus.compat.art.server_backend import ServerBackend
    from ludus.compat.art.trainable import Model, TrainableModel
    from ludus.compat.art.trajectory import History, Trajectory

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

_NAMES = {
    "trajectory_group_batches": "ludus.compat.art.batching",
    "auto_trajectory": "ludus.compat.art.capture",
    "capture_auto_trajectory": "ludus.compat.art.capture",
    "capture_yielded_trajectory": "ludus.compat.art.capture",
    "yield_trajectory": "ludus.compat.art.capture",
    "Messages": "ludus.compat.art.choice",
    "MessagesAndChoices": "ludus.compat.art.choice",
    "Tools": "ludus.compat.art.choice",
    "gather_trajectories": "ludus.compat.art.gathering",
    "gather_trajectory_groups": "ludus.compat.art.gathering",
    "TrajectoryGroup": "ludus.compat.art.group",
    "retry": "ludus.compat.art.retrying",
    "History": "ludus.compat.art.trajectory",
    "Trajectory": "ludus.compat.art.trajectory",
    "Backend": "ludus.compat.art.backends",
    "TrainConfig": "ludus.compat.art.backends",
    "TrainResult": "ludus.compat.art.backends",
    "TrainSFTConfig": "ludus.compat.art.backends",
    "LocalBackend": "ludus.compat.art.local_backend",
    "ServerBackend": "ludus.compat.art.server_backend",
    "Model": "ludus.compat.art.trainable",
    "TrainableModel": "ludus.compat.art.trainable",
}
__getattr__ = lazily(__name__, _NAMES)
