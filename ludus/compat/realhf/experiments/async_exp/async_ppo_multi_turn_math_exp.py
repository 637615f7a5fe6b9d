"""Experiments in mathematics, turn by turn."""

from ludus.compat.realhf.math_experiment import AsyncPPOMATHMultiTurnConfig

__all__ = ["AsyncPPOMATHMultiTurnConfig"]
