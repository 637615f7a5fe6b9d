"""The names of `areal.experimental.openai.types`."""

from ludus.compat.areal.openai_client import ExportedInteraction as InteractionWithTokenLogpReward

__all__ = [
    "InteractionWithTokenLogpReward",
]
