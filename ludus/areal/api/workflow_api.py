"""The names of `areal.api.workflow_api`."""

from ludus.agents.rollout_workflow import RolloutWorkflow
from ludus.agents.workflow import AgentWorkflow

__all__ = [
    "AgentWorkflow",
    "RolloutWorkflow",
]
