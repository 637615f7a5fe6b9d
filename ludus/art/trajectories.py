"""The names of `art.trajectories`."""

from ludus.agents.trajectory import History, Trajectory, TrajectoryGroup

__all__ = ["History", "Trajectory", "TrajectoryGroup"]
