"""Ready-made environments; they are registered when Ludus is imported."""

from ludus.agents.environments.math_code import MathCodeSingleStepEnv
from ludus.agents.queues.environment import NullEnvironment

__all__ = ["MathCodeSingleStepEnv", "NullEnvironment"]
