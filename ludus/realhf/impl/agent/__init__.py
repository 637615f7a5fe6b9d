"""Ready-made agents; they are registered when Ludus is imported."""

from ludus.agents.queues.math_agents import MathMultiTurnAgent, MathSingleStepAgent
from ludus.agents.queues.null_agent import NullAgent

__all__ = ["MathMultiTurnAgent", "MathSingleStepAgent", "NullAgent"]
