"""As in `verl.workers.rollout.replica`."""

from ludus.agents.loop import TokenOutput

__all__ = ["TokenOutput"]
