"""Parameters of experiments in mathematics."""

from ludus.api.math_experiment import PPOMATHConfig

__all__ = ["PPOMATHConfig"]
