"""Layers cut over ranks: each multiplies with its heads of attention and its columns of the MLP, all for one row.

Knows: decoder layers of transformers, peft's adapters, a mesh of ranks.  Knows not: losses, optimizers, how rows are
packed.
Invariants: outside of attention and MLP every rank computes only its part of a row's tokens, so nothing is computed
twice; weights that every rank of the mesh needs whole have a gradient that is summed over the mesh.

    norm          own tokens
    gather        all tokens of the ranks                                  its gradient is summed and cut again
    q k v gate up rows of the weight: own heads, own columns
    attention     own heads, all tokens
    o down        columns of the weight: a part of every output's sum
    reduce        the sums of own tokens                                   its gradient is gathered

torch's own `parallelize_module` would have the layers compute with distributed tensors, which neither the fused parts
nor the native kernels of a layer take. Here parameters are distributed tensors while they rest, and plain tensors, of
this rank's part, while their layer computes.

Source: Megatron-LM's tensor and sequence parallelism (arXiv 2205.05198) sec. 4.2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from ludus.errors import UserError
from ludus.models.load import LoadedModel

# By whether outputs or inputs are cut: the projections that end a part of a layer add up what its ranks have.
_BY_OUTPUT = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
_BY_INPUT = ("o_proj", "down_proj")
# Before 2.13 torch calls them otherwise; from then on it warns of those names.
_HAS_NEW_NAMES = hasattr(dist, "all_gather_single")
_all_gather = dist.all_gather_single if _HAS_NEW_NAMES else dist.all_gather_into_tensor
_reduce_scatter = dist.reduce_scatter_single if _HAS_NEW_NAMES else dist.reduce_scatter_tensor


def cut_layer(layer: nn.Module, placements: Mapping[str, Placement], mesh: DeviceMesh) -> None:
    """Cut a layer, which must not compute otherwise any more, over the ranks of `mesh`; this rank's part is on its
    device then.

    placements: of `check_layers`.
    """
    owners = [_owner(layer, name) for name in placements]
    for (owner, name), placement in zip(owners, placements.values(), strict=True):
        whole = owner._parameters[name]
        assert whole is not None, "every parameter was named"
        owner._parameters[name] = _distributed(whole, mesh, placement)
    layer.forward = _WithOwnParts(layer.forward, owners)
    group = mesh.get_group()
    for part in {layer.get_submodule(name.rpartition(".")[0]) for name in _ends(layer)}:
        part.register_forward_pre_hook(_Gather(group), with_kwargs=True)
        part.register_forward_hook(_Reduce(group))


def check_layers(model: LoadedModel, size: int) -> list[dict[str, Placement]]:
    """How each parameter of each layer is cut over `size` ranks.

    Raises UserError if one cannot be.
    """
    config = model.config
    if config.num_kv_heads % size or config.num_heads % size:
        raise UserError(
            f"trainer.tensor_parallel={size} cuts attention by heads, and {config.architecture} has {config.num_heads} "
            f"over {config.num_kv_heads} key heads; set a number that divides {config.num_kv_heads}"
        )
    return [
        {name: _placement(model, layer, name, each, size) for name, each in layer.named_parameters()}
        for layer in model.layers
    ]


def _ends(layer: nn.Module) -> list[str]:
    return [name for name, _ in layer.named_modules() if name.rpartition(".")[2] in _BY_INPUT]


def _placement(model: LoadedModel, layer: nn.Module, name: str, parameter: Tensor, size: int) -> Placement:
    """How a parameter of a layer is cut. Raises UserError if it cannot be."""
    steps = name.split(".")
    projection = next((step for step in steps if step in (*_BY_OUTPUT, *_BY_INPUT)), None)
    if projection is None:
        width = layer.get_submodule(".".join(steps[:-1]))
        in_attention = any(
            name.startswith(f"{end.rpartition('.')[0]}.") for end in _ends(layer) if end.endswith("o_proj")
        )
        expected = model.config.head_dim if in_attention else model.embedding.embedding_dim
        if type(width).__name__.endswith("Norm") and parameter.shape == (expected,):
            return Replicate()
    elif parameter.ndim <= 2 and not (projection in _BY_INPUT and steps[-1] == "bias"):
        is_first, is_second = "lora_A" in steps, "lora_B" in steps
        if (projection in _BY_OUTPUT and is_first) or (projection in _BY_INPUT and is_second):
            return Replicate()
        dim = 0 if projection in _BY_OUTPUT else 1
        if parameter.shape[dim] % size == 0:
            return Shard(dim)
    raise UserError(
        f"trainer.tensor_parallel={size} cannot cut {model.config.architecture}: its layers have a {name} of shape "
        f"{tuple(parameter.shape)}; it cuts {', '.join((*_BY_OUTPUT, *_BY_INPUT))} whose sizes it divides, and keeps "
        "norms of a token or of a head. Set trainer.tensor_parallel=1; trainer.context_parallel cuts the rows of any "
        "model"
    )


def _owner(layer: nn.Module, name: str) -> tuple[nn.Module, str]:
    path, _, own = name.rpartition(".")
    return layer.get_submodule(path), own


def _distributed(whole: nn.Parameter, mesh: DeviceMesh, placement: Placement) -> nn.Parameter:
    local = whole.detach()
    if isinstance(placement, Shard):
        local = local.chunk(mesh.size(), placement.dim)[mesh.get_local_rank()]
    local = local.to(mesh.device_type, copy=True, memory_format=torch.contiguous_format)
    return nn.Parameter(
        DTensor.from_local(local, mesh, [placement], run_check=False), requires_grad=whole.requires_grad
    )


@dataclass(frozen=True, slots=True)
class _WithOwnParts:
    """A layer's forward, for which its modules have plain tensors, of this rank's parts, in the place of parameters."""

    forward: Callable[..., Any]
    owners: list[tuple[nn.Module, str]]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # An attribute of the instance hides the parameter of that name, which stays what it is for everybody else. It
        # is left there: what is computed again in the backward pass, without this forward, takes it too.
        for owner, name in self.owners:
            vars(owner)[name] = _own_part(owner._parameters[name])
        return self.forward(*args, **kwargs)


def _own_part(parameter: Any) -> Tensor:
    own: Tensor = parameter.to_local(grad_placements=parameter.placements)
    if all(placement.is_replicate() for placement in parameter.placements):
        # each rank has its gradient by its own heads or tokens alone
        return sum_gradient(own, parameter.device_mesh.get_group())
    return own


@dataclass(frozen=True, slots=True)
class _Gather:
    """Before attention or an MLP: the hidden states of all ranks' tokens, in order."""

    group: dist.ProcessGroup

    def __call__(self, part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        del part
        if args:
            return (gather_tokens(args[0], self.group), *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": gather_tokens(kwargs["hidden_states"], self.group)}


@dataclass(frozen=True, slots=True)
class _Reduce:
    """After them: of the sums over all ranks those of own tokens."""

    group: dist.ProcessGroup

    def __call__(self, part: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        del part, args
        if isinstance(output, tuple):
            return reduce_tokens(output[0], self.group), *output[1:]
        return reduce_tokens(output, self.group)


def gather_tokens(own: Tensor, group: dist.ProcessGroup) -> Tensor:
    """(1, T, D) of every rank as (1, S, D). Its gradient is summed over the ranks."""
    gathered: Tensor = _GatherTokens.apply(own, group)  # type: ignore[no-untyped-call]
    return gathered


def reduce_tokens(parts: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The sum over the ranks of their (1, S, D), this rank's tokens of it: (1, T, D)."""
    reduced: Tensor = _ReduceTokens.apply(parts, group)  # type: ignore[no-untyped-call]
    return reduced


def sum_gradient(weight: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The weight, whose gradient is summed over the ranks: in fp32, and rounded once."""
    summed: Tensor = _SumGradient.apply(weight, group)  # type: ignore[no-untyped-call]
    return summed


class _SumGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        total = grad.to(torch.float32, copy=True)
        dist.all_reduce(total, group=ctx.group)
        return total.to(grad.dtype), None


class _GatherTokens(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _gathered(own, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _reduced(grad, ctx.group), None


class _ReduceTokens(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, parts: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _reduced(parts, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _gathered(grad, ctx.group), None


def _gathered(own: Tensor, group: dist.ProcessGroup) -> Tensor:
    one, num_tokens, width = own.shape
    gathered = own.new_empty(one, num_tokens * dist.get_world_size(group), width)
    _all_gather(gathered[0], own[0].contiguous(), group=group)
    return gathered


def _reduced(parts: Tensor, group: dist.ProcessGroup) -> Tensor:
    one, num_tokens, width = parts.shape
    reduced = parts.new_empty(one, num_tokens // dist.get_world_size(group), width)
    _reduce_scatter(reduced[0], parts[0].contiguous(), group=group)
    return reduced
