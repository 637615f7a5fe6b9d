"""The names of `areal.api.io_struct` that a workflow uses."""

from ludus.agents.generation import ModelRequest, ModelResponse

__all__ = [
    "ModelRequest",
    "ModelResponse",
]
