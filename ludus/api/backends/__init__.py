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

__all__ = [
    "Backend",
    "Inference",
    "OnProgress",
    "TrainConfig",
    "TrainProgress",
    "TrainResult",
    "TrainSFTConfig",
    "TrainableSpec",
    "train_config",
]
