"""The names of `areal.experimental.openai.types`."""

from ludus.agents.workflow.openai_client import ExportedInteraction as InteractionWithTokenLogpReward

__all__ = [
    "InteractionWithTokenLogpReward",
]
