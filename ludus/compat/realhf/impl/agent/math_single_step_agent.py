"""The mathematician who answers once."""

from ludus.compat.realhf.math_agents import MathSingleStepAgent

__all__ = ["MathSingleStepAgent"]
