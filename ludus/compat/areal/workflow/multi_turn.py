"""The names of `areal.workflow.multi_turn`."""

from ludus.compat.areal.verified import MultiTurnWorkflow

__all__ = [
    "MultiTurnWorkflow",
]
