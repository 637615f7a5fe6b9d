"""Experiments in mathematics, where the guide of `realhf` says they are."""

from ludus.compat.realhf.math_experiment import AsyncPPOMATHConfig, AsyncRLExperimentConfig, PPOMATHConfig

__all__ = ["AsyncPPOMATHConfig", "AsyncRLExperimentConfig", "PPOMATHConfig"]
