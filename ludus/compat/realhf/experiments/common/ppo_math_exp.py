"""Parameters of experiments in mathematics."""

from ludus.compat.realhf.math_experiment import PPOMATHConfig

__all__ = ["PPOMATHConfig"]
