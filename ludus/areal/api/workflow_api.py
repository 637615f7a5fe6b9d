"""The names of `areal.api.workflow_api`."""

from ludus.agents.rollout_workflow import RolloutWorkflow

__all__ = [
    "RolloutWorkflow",
]
