"""The names of `areal.utils.hf_utils` that a workflow uses."""

from ludus.compat.tokenizer import load_hf_tokenizer

__all__ = [
    "load_hf_tokenizer",
]
