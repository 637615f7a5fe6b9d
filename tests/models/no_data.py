"""A device without data in the place of a card: which tensors lie where is checked, what they hold is not.

Tensors on torch's `meta` device have a place and a shape. Here what is read from them is zeros (a single number: one),
and an operation between them and tensors of the processor fails unless a card would allow it: copies, indices, single
numbers. So whole steps run through, and whatever was made on the wrong device is found without a card; and so is a sum
whose order is not fixed on a card.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map_only
from transformers import AutoConfig, AutoModelForCausalLM

from ludus.models.attention import ATTENTION_NAME, register_attention
from ludus.models.config import ModelConfig
from ludus.models.fused_layers import fuse_layers
from ludus.models.load import LoadedModel, _add_lora
from ludus.models.settings import LoraSettings

NO_DATA = torch.device("meta")
SHAPE = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}
# On a card, indices may lie on the processor, and copies go from one to the other.
_CROSSES = ("aten::_to_copy", "aten::copy_", "aten::index", "aten::index_put_", "aten::_index_put_impl_")


# On a card these add numbers in whatever order threads come, says torch.use_deterministic_algorithms. Not among them:
# scatter_add_, by which a row of logits gets each token once.
_UNORDERED = (
    *("aten::index_add_", "aten::index_add", "aten::put_", "aten::histc"),
    *("aten::_embedding_bag_dense_backward", "aten::max_pool2d_with_indices_backward"),
    *("aten::_scaled_dot_product_flash_attention_backward", "aten::_scaled_dot_product_efficient_attention_backward"),
)


class UnorderedSumError(AssertionError):
    """A sum that may have other last bits the next time."""


class MixedDevicesError(AssertionError):
    """An operation between a card and the processor."""


class _Places(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, function._schema.name
        tensors = [each for each in tree_iter((args, kwargs)) if isinstance(each, Tensor)]
        if len({each.device.type for each in tensors if each.ndim}) > 1 and name not in _CROSSES:
            where = ", ".join(f"{tuple(each.shape)} on {each.device}" for each in tensors)
            raise MixedDevicesError(f"{function}: {where}")
        first = tensors[0] if tensors else None
        if first is not None and first.is_meta:
            # a row by itself is summed in parts, more are summed one by one
            is_of_one = name in ("aten::cumsum", "aten::cumsum_") and first.numel() == first.shape[args[1]]
            if (name in _UNORDERED or is_of_one) and first.is_floating_point():
                raise UnorderedSumError(f"{function}: {tuple(first.shape)}")
            if name in ("aten::_local_scalar_dense", "aten::item"):
                return torch.ones((), dtype=first.dtype).item()
            if name == "aten::_to_copy" and torch.device(kwargs.get("device") or NO_DATA).type == "cpu":
                return torch.zeros(first.shape, dtype=kwargs.get("dtype") or first.dtype)
        if name == "aten::copy_" and args[1].is_meta and not args[0].is_meta:
            return args[0].zero_()
        if name != "aten::index" or all(each.dtype != torch.bool for each in tensors):
            with suppress(NotImplementedError):
                return function(*args, **kwargs)
        # the size of what it returns depends on data, as how many numbers differ, or are chosen
        found = function(*tree_map_only(Tensor, _with_data, args), **tree_map_only(Tensor, _with_data, kwargs))
        return tree_map_only(Tensor, lambda each: each.to(NO_DATA), found)


def _with_data(tensor: Tensor) -> Tensor:
    """Zeros; of choices, all are chosen."""
    return torch.full(tensor.shape, tensor.dtype == torch.bool, dtype=tensor.dtype)


class _Lists(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is Tensor.tolist and args[0].is_meta:
            return torch.zeros(args[0].shape, dtype=args[0].dtype).tolist()
        return function(*args, **(kwargs or {}))


@contextmanager
def without_data(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Within the block tensors on `NO_DATA` compute; torch's fused AdamW, which refuses them, is its plain one."""
    plain = torch.optim.AdamW
    monkeypatch.setattr(torch.optim, "AdamW", lambda groups, *, fused, **how: plain(groups, foreach=False, **how))
    with _Places(), _Lists():
        yield


def model_without_data(family: str = "qwen3", *, vocab_size: int, lora: bool = False, **shape: Any) -> LoadedModel:
    """A model on `NO_DATA`, with every fused part that it could have. Only within `without_data`."""
    register_attention()
    config = AutoConfig.for_model(family, **{**SHAPE, **shape, "vocab_size": vocab_size})
    with NO_DATA:
        module = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation=ATTENTION_NAME)
    module.eval()
    adapter = _add_lora(module, LoraSettings(), 0) if lora else None
    fuse_layers(module, device=NO_DATA)
    trainable = {name: each for name, each in module.named_parameters() if each.requires_grad}
    return LoadedModel(Path("none"), module, ModelConfig.from_hf(config), trainable, adapter)
