"""Agents of the workflow family: one row and the model in, what the episode is worth out."""

from ludus.agents.workflow.agent import AgentRun, from_workflow
from ludus.agents.workflow.door import from_rollout_workflow
from ludus.agents.workflow.generation import GenerationHyperparameters, ModelRequest, ModelResponse
from ludus.agents.workflow.rollout import RolloutWorkflow

__all__ = [
    "AgentRun",
    "GenerationHyperparameters",
    "ModelRequest",
    "ModelResponse",
    "RolloutWorkflow",
    "from_rollout_workflow",
    "from_workflow",
]
