"""As in `verl.interactions.base`."""

from ludus.agents.loop import BaseInteraction

__all__ = ["BaseInteraction"]
