"""The agent that rewards nothing."""

from ludus.compat.realhf.null_agent import NullAgent

__all__ = ["NullAgent"]
