"""The names of `areal`: `from ludus.areal import PPOTrainer` in the place of `from areal import PPOTrainer`."""

from ludus.api.areal_script import PPOTrainer

__all__ = [
    "PPOTrainer",
]
