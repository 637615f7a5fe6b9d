"""The base of asynchronous experiments."""

from ludus.api.math_experiment import AsyncRLExperimentConfig

__all__ = ["AsyncRLExperimentConfig"]
