"""The names of `art.model`."""

from ludus.compat.art.trainable import Model, TrainableModel

__all__ = ["Model", "TrainableModel"]
