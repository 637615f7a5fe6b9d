"""The names of `areal.experimental.openai`."""

from ludus.compat.areal.openai_client import ArealOpenAI

__all__ = [
    "ArealOpenAI",
]
