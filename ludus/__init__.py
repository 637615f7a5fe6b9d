"""Ludus trains the model inside any LLM agent with reinforcement learning.

The agent keeps its own code and its own SDK; Ludus serves the model it talks to, records every token exactly as it was
sampled, and updates the weights. Importing this package imports nothing else: each name loads its module on first use.
Importing `Config` loads no server, and no import here loads torch.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

_NOT_ON_WINDOWS = (
    "Ludus runs on Linux and macOS; on Windows install it inside WSL: https://learn.microsoft.com/windows/wsl"
)
if sys.platform == "win32":
    raise ImportError(_NOT_ON_WINDOWS)

if TYPE_CHECKING:
    from ludus.agents.actors import Actor, ActorReply
    from ludus.agents.adapter import actor
    from ludus.algorithms.base import GroupReturns, LossInputs
    from ludus.api.experiment import ExperimentConfig
    from ludus.api.gateway import open_gateway
    from ludus.api.reward_model import RewardModel, train_reward_model
    from ludus.api.supervised import train_preferences, train_supervised
    from ludus.api.trainer import Trainer
    from ludus.compat.config import Config, load_config
    from ludus.compat.play import play
    from ludus.episodes.reward import Result
    from ludus.errors import AgentError, BackendError, ConfigError, InternalError, LudusError, UserError
    from ludus.loop.evaluate import Evaluation
    from ludus.loop.observer import Observer, RunSummary
    from ludus.loop.preferences import RewardSettings
    from ludus.loop.sft import SftSettings
    from ludus.runs.frames import LoadedRun, load_run

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
    "LoadedRun",
    "LossInputs",
    "LudusError",
    "Observer",
    "Result",
    "RewardModel",
    "RewardSettings",
    "RunSummary",
    "SftSettings",
    "Trainer",
    "UserError",
    "__version__",
    "actor",
    "load_config",
    "load_run",
    "open_gateway",
    "play",
    "train_preferences",
    "train_reward_model",
    "train_supervised",
]

_NAMES = {
    "ludus.agents.actors": "Actor ActorReply",
    "ludus.agents.adapter": "actor",
    "ludus.algorithms.base": "GroupReturns LossInputs",
    "ludus.api.experiment": "ExperimentConfig",
    "ludus.api.gateway": "open_gateway",
    "ludus.api.reward_model": "RewardModel train_reward_model",
    "ludus.api.supervised": "train_preferences train_supervised",
    "ludus.api.trainer": "Trainer",
    "ludus.compat.config": "Config load_config",
    "ludus.compat.play": "play",
    "ludus.episodes.reward": "Result",
    "ludus.errors": "AgentError BackendError ConfigError InternalError LudusError UserError",
    "ludus.loop.evaluate": "Evaluation",
    "ludus.loop.observer": "Observer RunSummary",
    "ludus.loop.preferences": "RewardSettings",
    "ludus.loop.sft": "SftSettings",
    "ludus.runs.frames": "LoadedRun load_run",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'ludus' has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
