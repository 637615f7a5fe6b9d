"""Agents that tell what they did: trajectories of messages and choices, gathered in groups."""

from ludus.agents.trajectory.choice import Choice, Messages, MessagesAndChoices, Tools
from ludus.agents.trajectory.group import Failure, TrajectoryGroup
from ludus.agents.trajectory.rollout import Gathering, Rollout, current_rollout, start_rollout
from ludus.agents.trajectory.trajectory import History, Trajectory

__all__ = [
    "Choice",
    "Failure",
    "Gathering",
    "History",
    "Messages",
    "MessagesAndChoices",
    "Rollout",
    "Tools",
    "Trajectory",
    "TrajectoryGroup",
    "current_rollout",
    "start_rollout",
]
