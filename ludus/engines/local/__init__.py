"""Ludus's own engine: sequences, pages, scheduler, runner, sampler, kernels.

This package imports without torch; everything but the settings is imported from its module.
"""

from ludus.engines.local.settings import InferenceSettings

__all__ = ["InferenceSettings"]
