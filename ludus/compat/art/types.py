"""The names of `art.types`."""

from ludus.compat.art.backends import TrainConfig, TrainResult, TrainSFTConfig
from ludus.compat.art.choice import Messages, MessagesAndChoices, Tools

__all__ = ["Messages", "MessagesAndChoices", "Tools", "TrainConfig", "TrainResult", "TrainSFTConfig"]
