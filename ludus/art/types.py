"""The names of `art.types`."""

from ludus.agents.trajectory import Messages, MessagesAndChoices, Tools
from ludus.api.backends import TrainConfig, TrainResult, TrainSFTConfig

__all__ = ["Messages", "MessagesAndChoices", "Tools", "TrainConfig", "TrainResult", "TrainSFTConfig"]
