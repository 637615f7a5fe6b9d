"""Ready-made agents; they are registered when Ludus is imported."""

from ludus.compat.realhf.math_agents import MathMultiTurnAgent, MathSingleStepAgent
from ludus.compat.realhf.null_agent import NullAgent

__all__ = ["MathMultiTurnAgent", "MathSingleStepAgent", "NullAgent"]
