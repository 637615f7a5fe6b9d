"""The trainer: computes gradients of packed rows, and changes the weights.

This package itself imports no torch, so that the configuration tree can read the settings on the base install;
`step`, `head` and `optimizer` are imported from their modules.
"""

from ludus.trainer.settings import OptimizerSettings, TrainerSettings

__all__ = ["OptimizerSettings", "TrainerSettings"]
