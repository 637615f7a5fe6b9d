"""Who trains the models that users' own code plays."""

from ludus.api.backends.base import (
    Backend,
    Inference,
    OnProgress,
    TrainableSpec,
    TrainConfig,
    TrainProgress,
    TrainResult,
    TrainSFTConfig,
    train_config,
)
from ludus.api.backends.hosted import HostedModel
from ludus.api.backends.local import LocalBackend
from ludus.api.backends.schedule import create_lr_schedule
from ludus.api.backends.server import ServerBackend

__all__ = [
    "Backend",
    "HostedModel",
    "Inference",
    "LocalBackend",
    "OnProgress",
    "ServerBackend",
    "TrainConfig",
    "TrainProgress",
    "TrainResult",
    "TrainSFTConfig",
    "TrainableSpec",
    "create_lr_schedule",
    "train_config",
]
