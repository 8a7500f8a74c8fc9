"""How much memory a test may take."""

import tracemalloc
import weakref
from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of the tensors that operations make, as long as they live.

    Those in `known` do not count.
    """

    def __init__(self, known=()):
        super().__init__()
        self.now = self.peak = 0
        self._known = [t.untyped_storage() for t in known]  # kept, so that the identities hold
        self._seen = {id(storage) for storage in self._known}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        tree_map_only(torch.Tensor, self._count, result)
        return result

    def _count(self, tensor):
        storage = tensor.untyped_storage()
        if id(storage) not in self._seen:
            self._seen.add(id(storage))
            weakref.finalize(storage, self._freed, id(storage), storage.nbytes()).atexit = False
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)
        return tensor

    def _freed(self, key, size):
        self._seen.discard(key)
        self.now -= size


@contextmanager
def at_most(size):
    """No more bytes than this at any time."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < size
    finally:
        tracemalloc.stop()
