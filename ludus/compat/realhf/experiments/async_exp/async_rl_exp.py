"""The base of asynchronous experiments."""

from ludus.compat.realhf.math_experiment import AsyncRLExperimentConfig

__all__ = ["AsyncRLExperimentConfig"]
