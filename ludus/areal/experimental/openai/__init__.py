"""The names of `areal.experimental.openai`."""

from ludus.agents.workflow.openai_client import ArealOpenAI

__all__ = [
    "ArealOpenAI",
]
