"""How many bytes of tensors are alive at most while something is computed, on any device."""

import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class LiveBytes(TorchDispatchMode):
    """Counts what is made within the block; what was there before is not counted."""

    def __init__(self):
        super().__init__()
        self.now = self.peak = 0
        self._known = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        for storage in _storages((args, kwargs)):
            self._know(storage, 0)
        made = function(*args, **(kwargs or {}))
        for storage in _storages(made):
            self._know(storage, storage.nbytes())
        self.peak = max(self.peak, self.now)
        return made

    def _know(self, storage, num_bytes):
        key = storage._cdata
        if key not in self._known:
            self._known.add(key)
            self.now += num_bytes
            weakref.finalize(storage, self._forget, key, num_bytes)

    def _forget(self, key, num_bytes):
        self._known.discard(key)
        self.now -= num_bytes


def _storages(tree):
    for each in tree_iter(tree):
        if isinstance(each, torch.Tensor) and each.layout == torch.strided:
            yield each.untyped_storage()
