"""Experiments in mathematics, bundle by bundle."""

from ludus.compat.realhf.math_experiment import AsyncPPOMATHConfig

__all__ = ["AsyncPPOMATHConfig"]
