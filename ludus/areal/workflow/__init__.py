"""The names of `areal.workflow`."""

from ludus.agents.workflow.verified import MultiTurnWorkflow, RLVRWorkflow

__all__ = [
    "MultiTurnWorkflow",
    "RLVRWorkflow",
]
