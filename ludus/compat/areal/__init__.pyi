# Written from names.toml: python -m tests.compat.test_stubs
from typing import Any

from ludus.compat.areal.generation import GenerationHyperparameters as GenerationHyperparameters
from ludus.compat.areal.generation import ModelRequest as ModelRequest
from ludus.compat.areal.generation import ModelResponse as ModelResponse
from ludus.compat.areal.openai_client import ArealOpenAI as ArealOpenAI
from ludus.compat.areal.rollout import AgentWorkflow as AgentWorkflow
from ludus.compat.areal.rollout import RolloutWorkflow as RolloutWorkflow
from ludus.compat.areal.script import PPOTrainer as PPOTrainer
from ludus.compat.areal.verified import MultiTurnWorkflow as MultiTurnWorkflow
from ludus.compat.areal.verified import RLVRWorkflow as RLVRWorkflow
from ludus.rewards.wrapper import AsyncRewardWrapper as AsyncRewardWrapper

def __getattr__(name: str) -> Any: ...
