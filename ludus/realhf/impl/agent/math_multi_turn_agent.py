"""The mathematician who is told whether it is right."""

from ludus.agents.queues.math_agents import MathMultiTurnAgent

__all__ = ["MathMultiTurnAgent"]
