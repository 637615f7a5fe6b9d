"""The mathematician who answers once."""

from ludus.agents.queues.math_agents import MathSingleStepAgent

__all__ = ["MathSingleStepAgent"]
