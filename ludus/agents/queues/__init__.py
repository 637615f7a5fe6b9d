"""Queue agents: token ids out to the model through one queue, bundles of answers back through another."""

from ludus.agents.queues.abstraction import AgentAbstraction, EnvServiceAbstraction
from ludus.agents.queues.agent import Agent, make_agent, register_agent
from ludus.agents.queues.door import QueueDoor, from_queue, is_queue_agent
from ludus.agents.queues.environment import EnvironmentService, NullEnvironment, make_env, register_environment
from ludus.agents.queues.generation import BundledGenerationOutputs, GenerationHyperparameters
from ludus.agents.queues.math_agents import MathMultiTurnAgent, MathSingleStepAgent
from ludus.agents.queues.null_agent import NullAgent
from ludus.agents.queues.sample import MicroBatchSpec, SequenceSample, SequenceSplitSpec
from ludus.agents.queues.trajectory import TrajectoryBuilder

__all__ = [
    "Agent",
    "AgentAbstraction",
    "BundledGenerationOutputs",
    "EnvServiceAbstraction",
    "EnvironmentService",
    "GenerationHyperparameters",
    "MathMultiTurnAgent",
    "MathSingleStepAgent",
    "MicroBatchSpec",
    "NullAgent",
    "NullEnvironment",
    "QueueDoor",
    "SequenceSample",
    "SequenceSplitSpec",
    "TrajectoryBuilder",
    "from_queue",
    "is_queue_agent",
    "make_agent",
    "make_env",
    "register_agent",
    "register_environment",
]
