"""The names of `areal.trainer`."""

from ludus.compat.areal.script import PPOTrainer

__all__ = [
    "PPOTrainer",
]
