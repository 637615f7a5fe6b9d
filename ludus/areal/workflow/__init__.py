"""The names of `areal.workflow`."""

from ludus.agents.verified import MultiTurnWorkflow, RLVRWorkflow

__all__ = [
    "MultiTurnWorkflow",
    "RLVRWorkflow",
]
