"""The names of `areal.utils.data` that a workflow uses."""

from ludus.agents.workflow.padded import concat_padded_tensors

__all__ = [
    "concat_padded_tensors",
]
