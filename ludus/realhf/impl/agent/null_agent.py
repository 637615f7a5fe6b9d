"""The agent that rewards nothing."""

from ludus.agents.queues.null_agent import NullAgent

__all__ = ["NullAgent"]
