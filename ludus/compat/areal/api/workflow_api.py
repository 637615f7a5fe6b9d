"""The names of `areal.api.workflow_api`."""

from ludus.agents.plain import AgentWorkflow
from ludus.compat.areal.rollout import RolloutWorkflow

__all__ = [
    "AgentWorkflow",
    "RolloutWorkflow",
]
