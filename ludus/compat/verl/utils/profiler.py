"""As in `verl.utils.profiler`."""

from ludus.compat.verl.base import simple_timer

__all__ = ["simple_timer"]
