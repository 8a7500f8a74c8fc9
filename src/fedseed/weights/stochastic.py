"""Writing float32 values into 16-bit tensors, rounded stochastically by numbers of the shared stream."""

import numpy as np
import torch

from fedseed.randomness import Domain, kernels
from fedseed.weights.change import Rounding
from fedseed.weights.digest import dtype_name
from fedseed.weights.vector import operand

PIECE = 1 << 15  # elements worked on at a time where the kernels do not: what is needed in between stays in a cache
_FORMATS = {torch.bfloat16: (7, -126), torch.float16: (10, -14)}  # bits of the mantissa, least exponent


def stochastic(values: torch.Tensor, words: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Rounds tensors as the kernels' `draw` rounds arrays, to the same bits on any device.

    Args:
        values: float32.
        words: a random word for each, as int32 of the same bits.
        dtype: torch.bfloat16 or torch.float16.

    Returns:
        float32 values that the dtype holds exactly (beyond its range: that round to infinity).
    """
    mantissa, least = _FORMATS[dtype]
    exponent = (values.view(torch.int32) >> 23 & 0xFF).clamp_(min=least + 127)  # |x| in [2^(e - 127), 2^(e - 126))
    spacing = (exponent.to(torch.int64) + (1023 - 127 - mantissa) << 52).view(torch.float64)  # a power of two
    chance = words.to(torch.float64).mul_(2.0**-32).add_(words < 0)  # uniform on [0, 1)
    return values.double().div_(spacing).add_(chance).floor_().mul_(spacing).float()


def write(out: torch.Tensor, values: torch.Tensor, rounding: Rounding, start: int) -> None:
    """out = values, rounded up or down with odds that make it right on average; float32 as they are.

    Args:
        out: 1-D, any of the dtypes of weights.
        values: float32, as many.
        rounding: seed and step of the shared stream.
        start: index of the first element in the parameter vector: each element has a random word of its own.
    """
    if out.dtype == torch.float32:
        out.copy_(values)
        return
    seed, step = rounding
    kernel = kernels.current(out.device.type)
    if kernel.draw is not None:
        kernel.draw(operand(kernel, out), values.numpy(), dtype_name(out), seed, Domain.ROUNDING, step, start)
        return
    for lo in range(0, len(out), PIECE):
        hi = min(lo + PIECE, len(out))
        words = kernel.element_words(seed, Domain.ROUNDING, step, start + lo, start + hi)
        drawn = torch.from_numpy(np.ascontiguousarray(words).view(np.int32)).to(out.device)
        out[lo:hi].copy_(stochastic(values[lo:hi], drawn, out.dtype))
