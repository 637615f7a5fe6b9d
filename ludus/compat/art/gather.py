"""The names of `art.gather`."""

from ludus.compat.art.gathering import gather_trajectories, gather_trajectory_groups

__all__ = ["gather_trajectories", "gather_trajectory_groups"]
