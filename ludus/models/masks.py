"""Which keys transformers' own masks show to the queries of each layer, whatever the length of windows.

Knows: transformers' masks, which are made by rules of two positions.  Knows not: weights, plans.
A window of thousands of tokens changes nothing in a short sequence. But its rule can be asked of any two positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers.masking_utils import AttentionMaskInterface, causal_mask_function, eager_mask

MaskRule = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""(sequence, head, query, key) → whether the query sees the key"""


@contextmanager
def watched_masks(module: nn.Module) -> Iterator[Mapping[int, MaskRule]]:
    """By layer the rule of the mask that its attention is given, filled as `module` runs with transformers' eager
    attention. A layer that is given a mask of no such rule, or none, is missing."""
    made: list[tuple[Tensor, MaskRule]] = []  # the tensors are held, so that each is known by its identity
    found: dict[int, MaskRule] = {}

    def make(*sizes: Any, mask_function: MaskRule = causal_mask_function, **more: Any) -> Tensor | None:
        mask: Tensor | None = eager_mask(*sizes, mask_function=mask_function, **more)
        if mask is not None:
            made.append((mask, mask_function))
        return mask

    def look(part: Any, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        for mask, rule in made:
            if any(each is mask for each in (*given, *named.values())):
                found[part.layer_idx] = rule

    layers = [part for part in module.modules() if isinstance(getattr(part, "layer_idx", None), int)]
    hooks = [part.register_forward_pre_hook(look, with_kwargs=True) for part in layers]
    AttentionMaskInterface._global_mapping["eager"] = make
    try:
        yield found
    finally:
        AttentionMaskInterface._global_mapping["eager"] = eager_mask
        for hook in hooks:
            hook.remove()


def is_window(rule: MaskRule, window: int | None, *, length: int) -> bool:
    """Whether every query sees itself and the keys before it, those less than `window` positions back, up to `length`.

    It is asked of positions at which windows, chunks and prefixes of any size would show.
    """
    at = _telling_positions(length, window)
    query, key = at[:, None], at[None]
    expected = key <= query
    if window is not None:
        expected &= query - key < window
    nought = torch.zeros((1, 1, 1, 1), dtype=torch.long)
    seen = rule(nought, nought, query[None, None], key[None, None])
    return torch.equal(seen.to(torch.bool).cpu().expand(1, 1, *expected.shape)[0, 0], expected)


def _telling_positions(length: int, window: int | None) -> Tensor:
    """The first and the last, those around powers of two, and of all these the ones at the edge of their window."""
    powers = [2**power for power in range(length.bit_length())]
    places = {place + step for place in (0, *powers, length - 1) for step in (-1, 0, 1)}
    if window is not None:
        places |= {place + step for place in {*places, window} for step in (-window, 1 - window, window)}
    return torch.tensor(sorted(place for place in places if 0 <= place < length))
