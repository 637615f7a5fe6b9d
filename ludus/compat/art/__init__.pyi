# Written from names.toml: python -m tests.compat.test_stubs
from typing import Any

from ludus.compat.art.backends import Backend as Backend
from ludus.compat.art.backends import TrainConfig as TrainConfig
from ludus.compat.art.backends import TrainResult as LocalTrainResult  # noqa: F401
from ludus.compat.art.backends import TrainResult as ServerlessTrainResult  # noqa: F401
from ludus.compat.art.backends import TrainResult as TrainResult
from ludus.compat.art.backends import TrainSFTConfig as TrainSFTConfig
from ludus.compat.art.batching import trajectory_group_batches as trajectory_group_batches
from ludus.compat.art.capture import auto_trajectory as auto_trajectory
from ludus.compat.art.capture import capture_auto_trajectory as capture_auto_trajectory
from ludus.compat.art.capture import capture_yielded_trajectory as capture_yielded_trajectory
from ludus.compat.art.capture import yield_trajectory as yield_trajectory
from ludus.compat.art.choice import Messages as Messages
from ludus.compat.art.choice import MessagesAndChoices as MessagesAndChoices
from ludus.compat.art.choice import Tools as Tools
from ludus.compat.art.gathering import gather_trajectories as gather_trajectories
from ludus.compat.art.gathering import gather_trajectory_groups as gather_trajectory_groups
from ludus.compat.art.group import TrajectoryGroup as TrajectoryGroup
from ludus.compat.art.local_backend import LocalBackend as LocalBackend
from ludus.compat.art.retrying import retry as retry
from ludus.compat.art.server_backend import ServerBackend as ServerBackend
from ludus.compat.art.serverless_backend import ServerlessBackend as ServerlessBackend
from ludus.compat.art.trainable import Model as Model
from ludus.compat.art.trainable import TrainableModel as TrainableModel
from ludus.compat.art.trajectory import History as History
from ludus.compat.art.trajectory import Trajectory as Trajectory

def __getattr__(name: str) -> Any: ...
