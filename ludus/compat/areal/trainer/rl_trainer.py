"""The names of `areal.trainer.rl_trainer`."""

from ludus.compat.areal.script import PPOTrainer

__all__ = [
    "PPOTrainer",
]
