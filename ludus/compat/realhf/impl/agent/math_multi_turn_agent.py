"""The mathematician who is told whether it is right."""

from ludus.compat.realhf.math_agents import MathMultiTurnAgent

__all__ = ["MathMultiTurnAgent"]
