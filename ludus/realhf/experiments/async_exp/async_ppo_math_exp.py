"""Experiments in mathematics, bundle by bundle."""

from ludus.api.math_experiment import AsyncPPOMATHConfig

__all__ = ["AsyncPPOMATHConfig"]
