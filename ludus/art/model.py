"""The names of `art.model`."""

from ludus.api.model import Model, TrainableModel

__all__ = ["Model", "TrainableModel"]
