"""Experiments in mathematics, turn by turn."""

from ludus.api.math_experiment import AsyncPPOMATHMultiTurnConfig

__all__ = ["AsyncPPOMATHMultiTurnConfig"]
