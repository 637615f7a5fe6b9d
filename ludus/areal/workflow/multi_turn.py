"""The names of `areal.workflow.multi_turn`."""

from ludus.agents.workflow.verified import MultiTurnWorkflow

__all__ = [
    "MultiTurnWorkflow",
]
