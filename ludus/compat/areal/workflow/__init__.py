"""The names of `areal.workflow`."""

from ludus.compat.areal.verified import MultiTurnWorkflow, RLVRWorkflow

__all__ = [
    "MultiTurnWorkflow",
    "RLVRWorkflow",
]
