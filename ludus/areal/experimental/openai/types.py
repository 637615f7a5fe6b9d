"""The names of `areal.experimental.openai.types`."""

from ludus.agents.areal_openai import ExportedInteraction as InteractionWithTokenLogpReward

__all__ = [
    "InteractionWithTokenLogpReward",
]
