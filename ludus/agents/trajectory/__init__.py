"""Agents that tell what they did: trajectories of messages and choices, gathered in groups."""

from ludus.agents.trajectory.batches import trajectory_group_batches
from ludus.agents.trajectory.capture import (
    auto_trajectory,
    capture_auto_trajectory,
    capture_yielded_trajectory,
    yield_trajectory,
)
from ludus.agents.trajectory.choice import Choice, Messages, MessagesAndChoices, Tools
from ludus.agents.trajectory.concurrency import limit_concurrency
from ludus.agents.trajectory.dataset import DatasetBatch, iterate_dataset
from ludus.agents.trajectory.exchanges import exchange_listeners
from ludus.agents.trajectory.gather import gather_trajectories, gather_trajectory_groups
from ludus.agents.trajectory.group import Failure, TrajectoryGroup
from ludus.agents.trajectory.retrying import retry
from ludus.agents.trajectory.rollout import Gathering, Rollout, current_rollout, start_rollout
from ludus.agents.trajectory.trajectory import History, Trajectory

__all__ = [
    "Choice",
    "DatasetBatch",
    "Failure",
    "Gathering",
    "History",
    "Messages",
    "MessagesAndChoices",
    "Rollout",
    "Tools",
    "Trajectory",
    "TrajectoryGroup",
    "auto_trajectory",
    "capture_auto_trajectory",
    "capture_yielded_trajectory",
    "current_rollout",
    "exchange_listeners",
    "gather_trajectories",
    "gather_trajectory_groups",
    "iterate_dataset",
    "limit_concurrency",
    "retry",
    "start_rollout",
    "trajectory_group_batches",
    "yield_trajectory",
]
