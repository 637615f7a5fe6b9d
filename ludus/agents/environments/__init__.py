"""Environments that come with Ludus."""

from ludus.agents.environments.base import EnvironmentService
from ludus.agents.environments.gym import GymEnvironment
from ludus.agents.environments.reasoning import ReasoningGymEnvironment, reasoning_gym_rows

__all__ = ["EnvironmentService", "GymEnvironment", "ReasoningGymEnvironment", "reasoning_gym_rows"]
