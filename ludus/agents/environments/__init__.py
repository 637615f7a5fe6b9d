"""Environments that come with Ludus, and the agent that plays any of them in text."""

from ludus.agents.environments.gym import GymEnvironment
from ludus.agents.environments.reasoning import ReasoningGymEnvironment, reasoning_gym_rows
from ludus.compat.realhf.math_code import MathCodeSingleStepEnv, load_metadata
from ludus.compat.realhf.text_agent import TextEnvironmentAgent

__all__ = [
    "GymEnvironment",
    "MathCodeSingleStepEnv",
    "ReasoningGymEnvironment",
    "TextEnvironmentAgent",
    "load_metadata",
    "reasoning_gym_rows",
]
