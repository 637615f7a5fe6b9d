"""The names of `areal.api.io_struct` that a workflow uses."""

from ludus.compat.areal.generation import ModelRequest, ModelResponse

__all__ = [
    "ModelRequest",
    "ModelResponse",
]
