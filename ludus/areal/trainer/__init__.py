"""The names of `areal.trainer`."""

from ludus.api.areal_script import PPOTrainer

__all__ = [
    "PPOTrainer",
]
