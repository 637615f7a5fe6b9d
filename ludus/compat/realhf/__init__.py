"""Queue agents and environments under the names of AReaL's first generation: `realhf` becomes `ludus.compat.realhf`."""

from typing import TYPE_CHECKING

from ludus.compat.lazy import lazily

if TYPE_CHECKING:
    from ludus.agents.environments import GymEnvironment, ReasoningGymEnvironment, reasoning_gym_rows
    from ludus.agents.environments.base import EnvironmentService
    from ludus.compat.realhf.abstraction import AgentAbstraction, EnvServiceAbstraction
    from ludus.compat.realhf.agent import Agent, make_agent, register_agent
    from ludus.compat.realhf.environments import NullEnvironment, make_env, register_environment
    from ludus.compat.realhf.generation import BundledGenerationOutputs, GenerationHyperparameters
    from ludus.compat.realhf.math_agents import MathMultiTurnAgent, MathSingleStepAgent
    from ludus.compat.realhf.math_code import MathCodeSingleStepEnv, load_metadata
    from ludus.compat.realhf.math_experiment import (
        AsyncPPOMATHConfig,
        AsyncPPOMATHMultiTurnConfig,
        AsyncRLExperimentConfig,
        PPOHyperparameters,
        PPOMATHConfig,
    )
    from ludus.compat.realhf.null_agent import NullAgent
    from ludus.compat.realhf.sample import MicroBatchSpec, SequenceSample, SequenceSplitSpec
    from ludus.compat.realhf.text_agent import TextEnvironmentAgent
    from ludus.compat.realhf.trajectory import TrajectoryBuilder
    from ludus.compat.tokenizer import load_hf_tokenizer
    from ludus.rewards.answers import math_verify_call
    from ludus.rewards.programs import code_verify_call, extract_code

__all__ = [
    "Agent",
    "AgentAbstraction",
    "AsyncPPOMATHConfig",
    "AsyncPPOMATHMultiTurnConfig",
    "AsyncRLExperimentConfig",
    "BundledGenerationOutputs",
    "EnvServiceAbstraction",
    "EnvironmentService",
    "GenerationHyperparameters",
    "GymEnvironment",
    "MathCodeSingleStepEnv",
    "MathMultiTurnAgent",
    "MathSingleStepAgent",
    "MicroBatchSpec",
    "NullAgent",
    "NullEnvironment",
    "PPOHyperparameters",
    "PPOMATHConfig",
    "ReasoningGymEnvironment",
    "SequenceSample",
    "SequenceSplitSpec",
    "TextEnvironmentAgent",
    "TrajectoryBuilder",
    "code_verify_call",
    "extract_code",
    "load_hf_tokenizer",
    "load_metadata",
    "make_agent",
    "make_env",
    "math_verify_call",
    "reasoning_gym_rows",
    "register_agent",
    "register_environment",
]

_NAMES = {
    "GymEnvironment": "ludus.agents.environments",
    "MathCodeSingleStepEnv": "ludus.compat.realhf.math_code",
    "ReasoningGymEnvironment": "ludus.agents.environments",
    "TextEnvironmentAgent": "ludus.compat.realhf.text_agent",
    "load_metadata": "ludus.compat.realhf.math_code",
    "reasoning_gym_rows": "ludus.agents.environments",
    "AgentAbstraction": "ludus.compat.realhf.abstraction",
    "EnvServiceAbstraction": "ludus.compat.realhf.abstraction",
    "Agent": "ludus.compat.realhf.agent",
    "make_agent": "ludus.compat.realhf.agent",
    "register_agent": "ludus.compat.realhf.agent",
    "EnvironmentService": "ludus.agents.environments.base",
    "NullEnvironment": "ludus.compat.realhf.environments",
    "make_env": "ludus.compat.realhf.environments",
    "register_environment": "ludus.compat.realhf.environments",
    "BundledGenerationOutputs": "ludus.compat.realhf.generation",
    "GenerationHyperparameters": "ludus.compat.realhf.generation",
    "MathMultiTurnAgent": "ludus.compat.realhf.math_agents",
    "MathSingleStepAgent": "ludus.compat.realhf.math_agents",
    "NullAgent": "ludus.compat.realhf.null_agent",
    "MicroBatchSpec": "ludus.compat.realhf.sample",
    "SequenceSample": "ludus.compat.realhf.sample",
    "SequenceSplitSpec": "ludus.compat.realhf.sample",
    "TrajectoryBuilder": "ludus.compat.realhf.trajectory",
    "load_hf_tokenizer": "ludus.compat.tokenizer",
    "AsyncPPOMATHConfig": "ludus.compat.realhf.math_experiment",
    "AsyncPPOMATHMultiTurnConfig": "ludus.compat.realhf.math_experiment",
    "AsyncRLExperimentConfig": "ludus.compat.realhf.math_experiment",
    "PPOHyperparameters": "ludus.compat.realhf.math_experiment",
    "PPOMATHConfig": "ludus.compat.realhf.math_experiment",
    "math_verify_call": "ludus.rewards.answers",
    "code_verify_call": "ludus.rewards.programs",
    "extract_code": "ludus.rewards.programs",
}
__getattr__ = lazily(__name__, _NAMES)
