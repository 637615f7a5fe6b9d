"""The names of `art.gather`."""

from ludus.agents.trajectory import gather_trajectories, gather_trajectory_groups

__all__ = ["gather_trajectories", "gather_trajectory_groups"]
