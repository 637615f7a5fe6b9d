"""As in `verl.interactions.gsm8k_interaction`."""

from ludus.compat.verl.gsm8k_user import Gsm8kInteraction

__all__ = ["Gsm8kInteraction"]
