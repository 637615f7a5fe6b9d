"""The names of `areal.experimental.openai`."""

from ludus.agents.areal_openai import ArealOpenAI

__all__ = [
    "ArealOpenAI",
]
