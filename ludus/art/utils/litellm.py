"""The names of `art.utils.litellm`."""

from ludus.agents.trajectory.choice import convert_litellm_choice_to_openai

__all__ = ["convert_litellm_choice_to_openai"]
