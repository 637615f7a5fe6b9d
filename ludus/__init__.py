"""Ludus trains the model inside any LLM agent with reinforcement learning.

The agent keeps its own code and its own SDK; Ludus serves the model it talks to, records every token exactly as it was
sampled, and updates the weights. Importing this package does not import torch.
"""

from ludus.agents.actors import Actor, ActorReply
from ludus.agents.adapter import actor
from ludus.algorithms.base import GroupReturns, LossInputs
from ludus.api.experiment import ExperimentConfig, load_config
from ludus.api.gateway import open_gateway
from ludus.api.play import play
from ludus.api.supervised import train_supervised
from ludus.api.trainer import Trainer
from ludus.config import Config
from ludus.episodes.reward import Result
from ludus.errors import AgentError, BackendError, ConfigError, InternalError, LudusError, UserError
from ludus.loop.evaluate import Evaluation
from ludus.loop.observer import Observer, RunSummary
from ludus.loop.sft import SftSettings

__version__ = "0.1.0"

__all__ = [
    "Actor",
    "ActorReply",
    "AgentError",
    "BackendError",
    "Config",
    "ConfigError",
    "Evaluation",
    "ExperimentConfig",
    "GroupReturns",
    "InternalError",
    "LossInputs",
    "LudusError",
    "Observer",
    "Result",
    "RunSummary",
    "SftSettings",
    "Trainer",
    "UserError",
    "__version__",
    "actor",
    "load_config",
    "open_gateway",
    "play",
    "train_supervised",
]
