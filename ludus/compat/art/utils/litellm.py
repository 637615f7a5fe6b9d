"""The names of `art.utils.litellm`."""

from ludus.compat.art.choice import convert_litellm_choice_to_openai

__all__ = ["convert_litellm_choice_to_openai"]
