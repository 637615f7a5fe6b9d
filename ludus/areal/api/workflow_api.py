"""The names of `areal.api.workflow_api`."""

from ludus.agents.workflow.agent import AgentWorkflow
from ludus.agents.workflow.rollout import RolloutWorkflow

__all__ = [
    "AgentWorkflow",
    "RolloutWorkflow",
]
