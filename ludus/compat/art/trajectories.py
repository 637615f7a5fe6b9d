"""The names of `art.trajectories`."""

from ludus.compat.art.group import TrajectoryGroup
from ludus.compat.art.trajectory import History, Trajectory

__all__ = ["History", "Trajectory", "TrajectoryGroup"]
