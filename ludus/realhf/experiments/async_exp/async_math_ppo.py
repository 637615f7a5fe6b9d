"""Experiments in mathematics, where the guide of `realhf` says they are."""

from ludus.api.math_experiment import AsyncPPOMATHConfig, AsyncRLExperimentConfig, PPOMATHConfig

__all__ = ["AsyncPPOMATHConfig", "AsyncRLExperimentConfig", "PPOMATHConfig"]
