"""A stand-in for an Apple GPU: tensors that are on `mps` for all who ask, and are computed on the CPU.

It refuses what such a GPU refuses: float64, sparse tensors, operands on another device, pinned memory. It shows which
way is taken on the device and that nothing else is; it does not show that torch has every operation there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

aten = torch.ops.aten
_APPLE = torch.device("mps", 0)
# The only ones whose operands may be on different devices; indices may always be on the CPU.
_MOVES = {aten._to_copy, aten.copy_, aten._copy_from, aten._copy_from_and_resize}
_INDEXES = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_}


class AppleTensor(Tensor):
    """Numbers on the CPU, `inner`, under the name of another device; torch's own code takes them for the CPU's."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> AppleTensor:
        if inner.dtype == torch.float64:
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64")
        if inner.layout != torch.strided:
            raise NotImplementedError("sparse tensors are not on the MPS device")
        sizes = {"strides": inner.stride(), "storage_offset": inner.storage_offset(), "dtype": inner.dtype}
        with torch.inference_mode(False):  # a view of a parameter is made there too, and is not one of that mode
            own = Tensor._make_wrapper_subclass(cls, inner.shape, device="cpu", **sizes)  # type: ignore[attr-defined]
        own.inner = inner
        return own  # type: ignore[no-any-return]

    def __repr__(self) -> str:  # type: ignore[override]
        return f"AppleTensor({self.inner!r})"

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return _APPLE

    @property
    def is_cpu(self) -> bool:  # type: ignore[override]
        return False

    def cpu(self) -> Tensor:  # type: ignore[override]
        return aten._to_copy.default(self, device=torch.device("cpu"))  # type: ignore[no-any-return]

    def to(self, *args: Any, **kwargs: Any) -> Tensor:  # type: ignore[override]
        device = next((each for each in (*args, kwargs.get("device")) if isinstance(each, str | torch.device)), _APPLE)
        dtype = next((each for each in (*args, kwargs.get("dtype")) if isinstance(each, torch.dtype)), self.dtype)
        is_here = torch.device(device).type == _APPLE.type
        if is_here and dtype == self.dtype and not kwargs.get("copy"):
            return self
        return aten._to_copy.default(self, device=torch.device(device), dtype=dtype)  # type: ignore[no-any-return]

    def new_tensor(self, data: Any, **kwargs: Any) -> Tensor:  # type: ignore[override]
        return torch.tensor(data, **{"dtype": self.dtype, "device": _APPLE, **kwargs})

    def numpy(self) -> Any:  # type: ignore[override]
        raise TypeError("can't convert mps:0 device type tensor to numpy. Use Tensor.cpu() first")

    def tolist(self) -> Any:
        return self.inner.tolist()

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _compute(func, args, kwargs or {})


class _AppleMode(TorchDispatchMode):
    """Makes tensors that are asked for on `mps`."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _compute(func, args, kwargs or {})


class _Lists(TorchFunctionMode):
    """Brings what is made of numbers of Python's to `mps`, which torch does below the mode above."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function in (torch.tensor, torch.as_tensor) and torch.device(kwargs.get("device") or "cpu").type == "mps":
            made = function(*args, **{name: each for name, each in kwargs.items() if name != "device"})
            return made if isinstance(made, AppleTensor) else aten._to_copy.default(made, device=_APPLE)
        return function(*args, **kwargs)


@contextmanager
def apple_gpu() -> Iterator[None]:
    """Within the block this thread's `mps` is the stand-in."""
    # a parameter that moves is another one; its old self could not be pointed at what is no memory of the CPU's
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        with _AppleMode(), _Lists():
            yield
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)


def _compute(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    kwargs = dict(kwargs)
    tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
    on_apple = [each for each in tensors if isinstance(each, AppleTensor)]
    asked = kwargs.get("device")
    if asked is not None:
        kwargs["device"] = "cpu"
    is_apple = bool(on_apple) if asked is None else torch.device(asked).type == "mps"
    if is_apple and kwargs.pop("pin_memory", False):
        raise RuntimeError("Cannot pin 'MPSFloatType' only dense CPU tensors can be pinned")
    if on_apple and len(on_apple) < len(tensors) and func.overloadpacket not in _MOVES:
        strangers = [each for each in tensors if not isinstance(each, AppleTensor) and each.dim() > 0]
        if strangers and func.overloadpacket not in _INDEXES:
            raise RuntimeError(f"{func}: Expected all tensors to be on the same device, but found mps and cpu")
    owners = {id(each.inner): each for each in on_apple}
    given = tree_map(lambda each: each.inner if isinstance(each, AppleTensor) else each, (args, kwargs))
    result = func(*given[0], **given[1])

    def owned(each: Any) -> Any:
        if not isinstance(each, Tensor):
            return each
        if id(each) in owners:  # what was changed in place, or written into
            return owners[id(each)]
        return AppleTensor(each) if is_apple else each

    if func is aten.copy_.default:
        return args[0]
    return tree_map(owned, result)
