# Written from names.toml: python -m tests.compat.test_stubs
from typing import Any

from ludus.agents.environments.base import EnvironmentService as EnvironmentService
from ludus.agents.environments.gym import GymEnvironment as GymEnvironment
from ludus.agents.environments.reasoning import ReasoningGymEnvironment as ReasoningGymEnvironment
from ludus.agents.environments.reasoning import reasoning_gym_rows as reasoning_gym_rows
from ludus.compat.realhf.abstraction import AgentAbstraction as AgentAbstraction
from ludus.compat.realhf.abstraction import EnvServiceAbstraction as EnvServiceAbstraction
from ludus.compat.realhf.agent import Agent as Agent
from ludus.compat.realhf.agent import make_agent as make_agent
from ludus.compat.realhf.agent import register_agent as register_agent
from ludus.compat.realhf.environments import NullEnvironment as NullEnvironment
from ludus.compat.realhf.environments import make_env as make_env
from ludus.compat.realhf.environments import register_environment as register_environment
from ludus.compat.realhf.generation import BundledGenerationOutputs as BundledGenerationOutputs
from ludus.compat.realhf.generation import GenerationHyperparameters as GenerationHyperparameters
from ludus.compat.realhf.math_agents import MathMultiTurnAgent as MathMultiTurnAgent
from ludus.compat.realhf.math_agents import MathSingleStepAgent as MathSingleStepAgent
from ludus.compat.realhf.math_code import MathCodeSingleStepEnv as MathCodeSingleStepEnv
from ludus.compat.realhf.math_code import load_metadata as load_metadata
from ludus.compat.realhf.math_experiment import AsyncPPOMATHConfig as AsyncPPOMATHConfig
from ludus.compat.realhf.math_experiment import AsyncPPOMATHMultiTurnConfig as AsyncPPOMATHMultiTurnConfig
from ludus.compat.realhf.math_experiment import AsyncRLExperimentConfig as AsyncRLExperimentConfig
from ludus.compat.realhf.math_experiment import PPOHyperparameters as PPOHyperparameters
from ludus.compat.realhf.math_experiment import PPOMATHConfig as PPOMATHConfig
from ludus.compat.realhf.null_agent import NullAgent as NullAgent
from ludus.compat.realhf.sample import MicroBatchSpec as MicroBatchSpec
from ludus.compat.realhf.sample import SequenceSample as SequenceSample
from ludus.compat.realhf.sample import SequenceSplitSpec as SequenceSplitSpec
from ludus.compat.realhf.text_agent import TextEnvironmentAgent as TextEnvironmentAgent
from ludus.compat.realhf.trajectory import TrajectoryBuilder as TrajectoryBuilder
from ludus.compat.tokenizer import load_hf_tokenizer as load_hf_tokenizer
from ludus.rewards.answers import math_verify_call as math_verify_call
from ludus.rewards.programs import code_verify_call as code_verify_call
from ludus.rewards.programs import extract_code as extract_code

def __getattr__(name: str) -> Any: ...
