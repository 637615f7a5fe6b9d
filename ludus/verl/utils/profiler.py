"""As in `verl.utils.profiler`."""

from ludus.agents.loop import simple_timer

__all__ = ["simple_timer"]
