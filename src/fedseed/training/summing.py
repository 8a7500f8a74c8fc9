"""Add clients' gradients up where backward passes leave them, in the memory of one gradient."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fedseed.weights.digest import tensor_bytes
from fedseed.weights.space import ParameterSpace


class GradientSum:
    """A sum of gradients in one piece of memory, in the weights' dtype.

    While `gathering`, backward passes add to it. After the first pass each addition is rounded to
    the dtype, in the order of the passes.

    Args:
        space: the weights, which are whole and of one dtype.

    Raises:
        ValueError: they are not.
    """

    def __init__(self, space: ParameterSpace) -> None:
        dtypes = sorted({entry.dtype for entry in space.layout.tensors})
        if len(dtypes) > 1 or len(space.devices) > 1 or space.vector.processes > 1:
            raise ValueError(
                f"method.summed = true: the weights are {' and '.join(dtypes)} on "
                f"{len(space.devices)} devices of {space.vector.processes} processes; it takes one "
                "dtype, one device and one process: leave it out"
            )
        self.space = space
        first = space.parameters[0]
        self._total = torch.zeros(space.size, dtype=first.dtype, device=first.device)

    def clear(self) -> None:
        """Begin a new sum."""
        self._total.zero_()

    @contextmanager
    def gathering(self) -> Iterator[None]:
        """While active, backward passes add gradients to the sum."""
        for p in self.space.parameters:
            start = self.space.vector.start_of(p)
            p.grad = self._total[start : start + p.numel()].view(p.shape)
        try:
            yield
        finally:
            for p in self.space.parameters:
                p.grad = None

    def data(self) -> memoryview:
        """Return the sum as `ParameterSpace.take_gradient` returns gradients.

        On a CPU it is the sum's own memory: it changes with the sum.
        """
        return tensor_bytes(self._total)
