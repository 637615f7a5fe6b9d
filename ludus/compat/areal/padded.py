"""Joins rows of tokens in arrays of different widths.

Knows: torch, if its tensors are given.  Knows not: what the rows are.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from ludus.errors import UserError


def concat_padded_tensors(tensor_dicts: Sequence[Mapping[str, Any]], pad_value: float = 0.0) -> dict[str, Any]:
    """The rows of all dictionaries, in order, right-padded to the longest; `attention_mask` is padded with 0.

    Tensors of shape (rows, tokens) are padded, those of shape (rows,) joined.
    Raises UserError if there are none, or if they do not have the same names.
    """
    if not tensor_dicts:
        raise UserError("there are no rows to join; reject an episode with `return None`")
    names = list(tensor_dicts[0])
    for other in tensor_dicts:
        if set(other) != set(names):
            raise UserError(f"rows with {sorted(other)} cannot be joined with rows that have {sorted(names)}")
    torch, rnn = importlib.import_module("torch"), importlib.import_module("torch.nn.utils.rnn")
    joined = {}
    for name in names:
        tensors = [each[name] for each in tensor_dicts]
        value = 0.0 if name == "attention_mask" else pad_value
        join = partial(rnn.pad_sequence, batch_first=True, padding_value=value) if tensors[0].dim() > 1 else torch.stack
        joined[name] = join([row for tensor in tensors for row in tensor])
    return joined
