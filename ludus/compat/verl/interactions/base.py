"""As in `verl.interactions.base`."""

from ludus.compat.verl.interaction import BaseInteraction

__all__ = ["BaseInteraction"]
