"""The names of `areal.utils.data` that a workflow uses."""

from ludus.compat.areal.padded import concat_padded_tensors

__all__ = [
    "concat_padded_tensors",
]
