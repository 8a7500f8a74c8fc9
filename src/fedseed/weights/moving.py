"""Adding sums over directions to a vector of weights: one read and one write of each weight.

What the kernels do not do (stochastic rounding, rules with running averages) goes through a buffer
of bounded size.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from fedseed.optimizers.rules import Moments, Rule
from fedseed.randomness import kernels
from fedseed.randomness.kernels.reference import Job
from fedseed.weights.change import Add, Rounding, Term
from fedseed.weights.digest import dtype_name
from fedseed.weights.vector import Prepare, Vector, flat, operand, write_back

PIECE = 1 << 22  # elements worked on at a time where a buffer is needed: bounds it by 16 MiB


def move(
    vector: Vector,
    prepare: Prepare,
    scale: float,
    base: Sequence[torch.Tensor] | None = None,
    rounding: Rounding | None = None,
) -> None:
    """w = round((base or w) + scale * what is prepared), stochastically only where all kernels take
    tensors.

    Steps that have scales of their own take 1.
    """
    together: dict[kernels.Kernels, list[Job]] = {}  # what one launch can do
    copies: dict[int, torch.Tensor] = {}  # of tensors with gaps in memory
    for index, lo, hi, start, kernel, prepared in vector.pieces(prepare):
        p = vector.parameters[index]
        if not p.is_contiguous() and index not in copies:
            copies[index] = flat(p)
        out = (operand(kernel, copies[index]) if index in copies else vector.operand(kernel, p))[
            lo:hi
        ]
        source = out if base is None else operand(kernel, flat(base[index])[lo:hi])
        job = Job(out, source, dtype_name(p), prepared, start)
        if kernel.TENSORS:
            together.setdefault(kernel, []).append(job)
        else:
            kernel.move_all([job], scale)
    for kernel, jobs in together.items():
        kernel.move_all(jobs, scale, rounding)
    for index, elements in copies.items():
        write_back(vector.parameters[index], elements)


def move_steps(vector: Vector, steps: Sequence[Add]) -> None:
    """Takes one step after the other in one pass over w: the same roundings, so the same bits.

    Raises ValueError as `Vector.preparing` does; the weights are unchanged then.
    """
    sums = [(vector.parts(step.terms, step.scale), step.scale) for step in steps]

    def prepare(kernel: kernels.Kernels, block: int, length: int) -> Any:
        return kernel.prepare_steps([(parts(block), scale) for parts, scale in sums], length)

    move(vector, prepare, 1.0)


def write(out: torch.Tensor, values: torch.Tensor, rounding: Rounding | None, start: int) -> None:
    """out = values, rounded up or down with odds that make it right on average.

    Float32 as they are.

    Args:
        out: 1-D, any of the dtypes of weights.
        values: float32, as many.
        rounding: seed and step of the shared stream; None: to nearest.
        start: index of the first element in the parameter vector: each element has a random word of
            its own.
    """
    if rounding is None or out.dtype == torch.float32:
        out.copy_(values)
        return
    kernel = kernels.current(out.device.type)
    kernel.draw(operand(kernel, out), operand(kernel, values), dtype_name(out), rounding, start)


def move_by_pieces(
    vector: Vector,
    terms: Sequence[Term],
    scale: float,
    rounding: Rounding | None,
    moments: Moments | None = None,
) -> None:
    """`move` with a buffer: rounded stochastically, or by what running averages make of the sum."""
    if moments is None and all(kernels.current(device.type).TENSORS for device in vector.devices):
        # such kernels need none
        move(vector, vector.preparing(terms, scale), scale, rounding=rounding)
        return

    def change(kernel: kernels.Kernels, prepared: Any, start: int, stop: int) -> torch.Tensor:
        total = combined(kernel, prepared, start, stop)
        if moments is None:
            return total * float(np.float32(scale)) + 0.0
        return moments.change(total.to(moments.first.device), start)

    _by_pieces(vector, vector.preparing(terms, scale), change, rounding)


def move_scaled(vector: Vector, terms: Sequence[Term], scale: float, moments: Moments) -> None:
    """`move` along directions whose entries are divided by what "hiso" has learnt, which stays as
    it is.
    """

    def change(kernel: kernels.Kernels, prepared: Any, start: int, stop: int) -> torch.Tensor:
        divisor = moments.divisor(slice(start, stop), torch.float32)
        return (
            combined(kernel, prepared, start, stop).to(divisor.device)
            / divisor
            * float(np.float32(scale))
            + 0.0
        )

    _by_pieces(vector, vector.preparing(terms, scale), change, None)


def move_rebuilt(
    vector: Vector, steps: Sequence[Sequence[Term]], rule: Rule, rounding: Rounding | None
) -> None:
    """`move_by_pieces` by averages that are made of these steps alone.

    The last one is what the weights take.

    Every direction is made once for each step that remembers it; the memory is that of a few
    pieces.
    """
    preparing = [vector.preparing(terms, 1.0) for terms in steps]

    def prepare(kernel: kernels.Kernels, block: int, length: int) -> Any:
        return [one(kernel, block, length) for one in preparing]

    def change(kernel: kernels.Kernels, prepared: Any, start: int, stop: int) -> torch.Tensor:
        moments = None
        for step in prepared:
            gradient = combined(kernel, step, start, stop)
            if moments is None:
                moments = Moments(
                    rule, torch.zeros_like(gradient), torch.zeros_like(gradient), len(steps)
                )
            moments.take(gradient, 0)
        assert moments is not None
        return moments.descent(slice(None), torch.float32)

    _by_pieces(vector, prepare, change, rounding)


def combined(kernel: kernels.Kernels, prepared: Any, start: int, stop: int) -> torch.Tensor:
    """Returns the sum over elements start..stop, as a tensor."""
    total = kernel.combine(prepared, start, stop)
    return total if isinstance(total, torch.Tensor) else torch.from_numpy(total)


def _by_pieces(
    vector: Vector,
    prepare: Prepare,
    change: Callable[[kernels.Kernels, Any, int, int], torch.Tensor],
    rounding: Rounding | None,
) -> None:
    """w <- round(w + change(kernels, prepared, start, stop)), PIECE elements at a time."""
    for index, first, last, begin, kernel, prepared in vector.pieces(prepare):
        p = vector.parameters[index]
        elements = flat(p)
        for lo in range(first, last, PIECE):
            hi = min(lo + PIECE, last)
            start = begin + lo - first
            value = elements[lo:hi].float() + change(kernel, prepared, start, start + hi - lo).to(
                p.device
            )
            write(elements[lo:hi], value, rounding, start)
        write_back(p, elements)
