"""As in `verl.workers.rollout.replica`."""

from ludus.compat.verl.server import TokenOutput

__all__ = ["TokenOutput"]
