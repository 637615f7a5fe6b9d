"""As in `verl.interactions.gsm8k_interaction`."""

from ludus.agents.loop import Gsm8kInteraction

__all__ = ["Gsm8kInteraction"]
