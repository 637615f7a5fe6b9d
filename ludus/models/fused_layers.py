"""Parts of transformers' decoder layers replaced by fused ones, for sampling and training alike.

Knows: how decoders call their parts.  Knows not: what keys and values become, losses, engines.
Invariants: every part is proven on random inputs to compute what transformers' own part computes, and what is not
proven stays as it was; parameters keep their names and shapes, and stay the tensors that sample and are trained.

Only the `forward` of small parts is replaced, on each instance; a layer's own forward goes on calling them.
"""

from __future__ import annotations

import inspect
import types
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from ludus.algorithms.exact import exact
from ludus.kernels.rowwise import NormRule
from ludus.models import fused_autograd as fused
from ludus.models.four_bit import FourBitLinear
from ludus.models.lora import fuse_adapters, plain_adapter
from ludus.models.operations import Operations, choose_operations
from ludus.models.rowwise import Rowwise

# Projections that a layer calls with one and the same input.
_SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
_GATED_PARTS = ("gate_proj", "up_proj", "down_proj", "act_fn")
_ROTARY = "apply_rotary_pos_emb"
_PROBE_ROWS = 5
_LARGE = 64.0  # fp16 ends at 65,504


def fuse_layers(module: nn.Module, *, device: torch.device | None = None, stacks: bool = True) -> None:
    """Replace what can be replaced in `module`, a decoder of transformers with or without peft's adapters.

    device: where it is going to compute. None: where its weights are.
    stacks: the weights of projections with one input become views of one matrix; not of weights that are going to be
    cut over processes.
    Calling it twice on one module is an error of the caller: parts that are fused already are not proven again.
    """
    weight = next(parameter for parameter in module.parameters() if parameter.ndim == 2)
    operations = choose_operations(weight, device)
    rowwise = operations.rowwise
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(0)
        _fuse_norms(module, rowwise)
        if stacks:
            _fuse_projections(module, operations)
        _replace_linears(module, operations)
        fuse_adapters(module, operations)
        _fuse_gates(module, rowwise)
        _fuse_rotary(module, rowwise, weight)


def _replace_forward(part: Any, forward: Callable[..., Any]) -> None:
    part.forward = forward


def _prove(part: nn.Module, forward: Callable[[Tensor], Tensor], width: int, like: Tensor) -> None:
    """Replace the forward of `part`, which takes rows of `width` numbers, if both make the same of random ones.

    Large ones too: what cuts numbers off, such as the limit of some gated MLPs, leaves small ones alone.
    """
    x = torch.randn(2 * _PROBE_ROWS, width, dtype=like.dtype, device=like.device)
    x[_PROBE_ROWS:] *= _LARGE
    if _near(forward(x), part(x)):
        _replace_forward(part, forward)


# ---- norms -----------------------------------------------------------------------------------------------------------


def _norm(part: Any, rule: NormRule, rowwise: Rowwise, hidden: Tensor) -> Tensor:
    return fused.norm(hidden, part.weight, rule, rowwise)


def _fuse_norms(module: nn.Module, rowwise: Rowwise) -> None:
    rules: dict[tuple[object, ...], NormRule | None] = {}
    for part in module.modules():
        if not type(part).__name__.endswith("RMSNorm") or [name for name, _ in part.named_parameters()] != ["weight"]:
            continue
        eps = getattr(part, "variance_epsilon", getattr(part, "eps", None))
        if not isinstance(eps, float):
            continue
        key = (type(part), eps, part.weight.shape, part.weight.dtype)
        if key not in rules:
            rules[key] = _norm_rule(part, eps, rowwise)
        if (rule := rules[key]) is not None:
            _replace_forward(part, partial(_norm, part, rule, rowwise))


def _norm_rule(part: nn.Module, eps: float, rowwise: Rowwise) -> NormRule | None:
    """The formula that the norm follows, found with a weight of random numbers. None: another one."""
    own = part.weight
    assert isinstance(own, Tensor)
    weight = torch.rand_like(own) + 0.5
    # rows from far below eps to far above it
    scales = torch.logspace(-4, 2, 4 * _PROBE_ROWS, dtype=own.dtype, device=own.device)[:, None]
    x = torch.randn(len(scales), *own.shape, dtype=own.dtype, device=own.device) * scales
    expected = torch.func.functional_call(part, {"weight": weight}, (x,))
    for offset in (0.0, 1.0):
        for casts_first in (True, False):
            rule = NormRule(eps, offset, casts_first)
            if _same_rounding(rowwise.norm(x, weight, rule), expected):
                return rule
    return None


# ---- projections of one input ----------------------------------------------------------------------------------------


class _Siblings:
    """Linear layers with one input, stored as one matrix: the first that is called multiplies for all.

    Each result is handed out once, and only to whom brings the very tensor that it was computed from; in between
    the weights must not change, which nobody does within a layer's forward pass.
    """

    def __init__(self, layers: Sequence[nn.Linear], operations: Operations) -> None:
        self._linear = operations.linear
        self._layers = tuple(layers)
        self._sizes = [layer.out_features for layer in layers]
        self._weight = _stack([layer.weight for layer in layers])
        biases = [layer.bias for layer in layers if layer.bias is not None]
        self._bias = _stack(biases) if biases else None
        self._parameters = (*(layer.weight for layer in layers), *biases)
        self._addresses = [parameter.data_ptr() for parameter in self._parameters]
        self._key: tuple[Tensor, bool] | None = None
        self._parts: list[Tensor | None] = []

    def call(self, index: int, x: Tensor) -> Tensor:
        """What layer `index` makes of x."""
        grad = torch.is_grad_enabled()
        if self._key is None or self._key[0] is not x or self._key[1] != grad or self._parts[index] is None:
            self._key, self._parts = (x, grad), list(self._multiply(x, grad))
        part = self._parts[index]
        assert part is not None
        self._parts[index] = None
        if all(each is None for each in self._parts):
            self._key = None
        return part

    def _multiply(self, x: Tensor, grad: bool) -> tuple[Tensor, ...]:
        if self._addresses != [parameter.data_ptr() for parameter in self._parameters]:
            # somebody has pointed the parameters at other tensors, as a trainer does to ask its reference
            return tuple(functional.linear(x, layer.weight, layer.bias) for layer in self._layers)
        if grad:
            return fused.project(x, self._weight, self._bias, self._sizes, self._parameters)
        return torch.split(self._linear(x, self._weight, self._bias), self._sizes, -1)


def _stack(parameters: Sequence[Tensor]) -> Tensor:
    """The parameters below each other in memory of their own; from now on they are views of it."""
    stacked = torch.cat([parameter.data for parameter in parameters])
    for parameter, part in zip(parameters, torch.split(stacked, [len(each) for each in parameters]), strict=True):
        parameter.data = part
    return stacked


def _fuse_projections(module: nn.Module, operations: Operations) -> None:
    owners = Counter(parameter.data_ptr() for _, parameter in module.named_parameters(remove_duplicate=False))
    for part in module.modules():
        for names in _SIBLINGS:
            layers = [getattr(part, name, None) for name in names]
            if _can_stack(layers, owners):
                _prove_siblings(layers, operations)


def _prove_siblings(layers: Sequence[Any], operations: Operations) -> None:
    weight = layers[0].weight
    x = torch.randn(_PROBE_ROWS, layers[0].in_features, dtype=weight.dtype, device=weight.device)
    expected = [layer(x) for layer in layers]
    siblings = _Siblings(layers, operations)
    if all(_near(siblings.call(index, x), each) for index, each in enumerate(expected)):
        for index, layer in enumerate(layers):
            _replace_forward(layer, partial(siblings.call, index))


def _can_stack(layers: Sequence[Any], owners: Counter[int]) -> bool:
    """Those with adapters of their own are products by themselves, of which each adapter is a part."""
    if not all(type(layer) is nn.Linear for layer in layers):
        return False
    kinds = {(each.in_features, each.weight.dtype, each.weight.device, each.bias is None) for each in layers}
    own = [parameter for layer in layers for parameter in layer.parameters()]
    return len(kinds) == 1 and all(owners[parameter.data_ptr()] == 1 for parameter in own)


def _plain(layer: Any) -> nn.Linear | FourBitLinear | None:
    """The linear layer itself, out of an adapter of peft's if it has one. None: it is something else."""
    layer = getattr(layer, "base_layer", layer)
    return layer if type(layer) in (nn.Linear, FourBitLinear) else None


# ---- other linear layers ---------------------------------------------------------------------------------------------


def _linear(layer: nn.Linear, operations: Operations, x: Tensor) -> Tensor:
    multiply = functional.linear if torch.is_grad_enabled() else operations.linear
    return multiply(x, layer.weight, layer.bias)


def _replace_linears(module: nn.Module, operations: Operations) -> None:
    for part in module.modules():
        if type(part) is not nn.Linear or "forward" in vars(part):
            continue
        _prove(part, partial(_linear, part, operations), part.in_features, part.weight)


# ---- gated MLPs ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _FusedGate:
    """down(act(gate(x)) * up(x)); under autograd the factor of the last product is computed again, not kept."""

    part: Any
    rowwise: Rowwise
    is_silu: bool

    def __call__(self, hidden: Tensor) -> Tensor:
        gate, up = self.part.gate_proj(hidden), self.part.up_proj(hidden)
        if not torch.is_grad_enabled():
            return self._tail(gate, up)
        down = self.part.down_proj
        adapter, base = plain_adapter(down), _plain(down)
        if self.is_silu and isinstance(base, nn.Linear) and (adapter is not None or base is down):
            return fused.gate_product(gate, up, base.weight, base.bias, self.rowwise, adapter)
        # the recomputation stops before the last product, whose result nobody needs again
        output: Tensor = checkpoint(self._tail, gate, up, use_reentrant=False, preserve_rng_state=False)
        return output

    def _tail(self, gate: Tensor, up: Tensor) -> Tensor:
        active = fused.gate(gate, up, self.rowwise) if self.is_silu else self.part.act_fn(gate) * up
        output: Tensor = self.part.down_proj(active)
        return output


def _fuse_gates(module: nn.Module, rowwise: Rowwise) -> None:
    part: Any
    for part in module.modules():
        down = _plain(getattr(part, "down_proj", None))
        if down is None or not all(hasattr(part, name) for name in _GATED_PARTS):
            continue
        like = down.weight
        gate = torch.linspace(-30, 30, 999, dtype=like.dtype, device=like.device)[None]
        up = torch.randn_like(gate)
        is_silu = _same_rounding(rowwise.gate(gate, up), part.act_fn(gate) * up)
        _prove(part, _FusedGate(part, rowwise, is_silu), down.out_features, like)


# ---- rotary positions ------------------------------------------------------------------------------------------------


def _fuse_rotary(module: nn.Module, rowwise: Rowwise, like: Tensor) -> None:
    rebound: dict[tuple[object, int], types.FunctionType | None] = {}
    for part in module.modules():
        # newer versions of transformers wrap it to rename arguments, which layers never call by their old names
        function, head_dim = inspect.unwrap(type(part).forward), getattr(part, "head_dim", None)
        if not isinstance(function, types.FunctionType) or not isinstance(head_dim, int) or "forward" in vars(part):
            continue
        if _ROTARY not in function.__code__.co_names:
            continue
        key = (function, head_dim)
        if key not in rebound:
            rebound[key] = _with_rotary(function, head_dim, rowwise, like)
        if (own := rebound[key]) is not None:
            _replace_forward(part, types.MethodType(own, part))


def _with_rotary(
    function: types.FunctionType, head_dim: int, rowwise: Rowwise, like: Tensor
) -> types.FunctionType | None:
    """The same code that finds our function under the name of transformers' own. None: that one computes otherwise."""
    original = function.__globals__[_ROTARY]
    if original.__code__.co_varnames[:4] != ("q", "k", "cos", "sin") or head_dim % 2:
        return None
    shapes = ((1, 3, _PROBE_ROWS, head_dim), (1, 2, _PROBE_ROWS, head_dim), *((1, _PROBE_ROWS, head_dim),) * 2)
    q, k, cos, sin = (torch.randn(shape, dtype=like.dtype, device=like.device) for shape in shapes)
    try:
        expected = original(q, k, cos, sin)
    except RuntimeError:  # its angles are of half a head, or of another shape
        return None
    if not all(_same_rounding(*pair) for pair in zip(rowwise.rotate(q, k, cos, sin), expected, strict=True)):
        return None

    def rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *rest: Any, **more: Any) -> tuple[Tensor, Tensor]:
        is_usual = not rest and not more and len(q) == 1 and cos.shape == (1, q.shape[2], q.shape[3])
        if is_usual and q.dtype == cos.dtype:
            return fused.rotate(q, k, cos, sin, rowwise)
        turned: tuple[Tensor, Tensor] = original(q, k, cos, sin, *rest, **more)
        return turned

    names = {**function.__globals__, _ROTARY: rotate}
    copy = types.FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


# ---- proofs ----------------------------------------------------------------------------------------------------------


def _same_rounding(got: Tensor, expected: Tensor) -> bool:
    """Within two roundings of the largest value of the row, and nearly all the same where the type is a coarse one."""
    if not _near(got, expected):
        return False
    is_coarse = torch.finfo(expected.dtype).eps > 1e-4
    return not is_coarse or float((got != expected).float().mean()) < 0.02


def _near(got: Tensor, expected: Tensor) -> bool:
    """Equal but for the order of sums, measured by the largest value of the row."""
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return False
    wanted = exact(expected)
    # a sum of a few thousand products in another order
    tolerance = (4 if expected.element_size() == 2 else 64) * torch.finfo(expected.dtype).eps
    return bool(((exact(got) - wanted).abs() <= tolerance * wanted.abs().amax(-1, keepdim=True)).all())
