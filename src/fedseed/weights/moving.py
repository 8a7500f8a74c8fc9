"""Add sums over directions to a vector of weights, with one read and one write of each weight.

Stochastic rounding and rules with running averages are not in all kernels, and use a buffer of
bounded size.
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

# elements per pass through the buffer, which bounds it by 16 MiB
PIECE = 1 << 22


def move(
    vector: Vector,
    prepare: Prepare,
    scale: float,
    base: Sequence[torch.Tensor] | None = None,
    rounding: Rounding | None = None,
) -> None:
    """Set w = round((base or w) + scale * the prepared sum).

    Args:
        vector: the weights.
        prepare: prepares the sum for each block.
        scale: multiplies the sum; 1 if the prepared steps have scales of their own.
        base: tensors to add the sum to; None: the weights.
        rounding: rounds stochastically; only if all kernels work on tensors.
    """
    # jobs of a single launch
    joint_jobs: dict[kernels.Kernels, list[Job]] = {}
    # elements at a time of tensors with gaps in memory
    contiguous_copies: dict[int, torch.Tensor] = {}
    for index, lo, hi, start, kernel, prepared in vector.pieces(prepare):
        p = vector.parameters[index]
        if not p.is_contiguous() and index not in contiguous_copies:
            contiguous_copies[index] = flat(p)
        if index in contiguous_copies:
            tensor = operand(kernel, contiguous_copies[index])
        else:
            tensor = vector.operand(kernel, p)
        target = tensor[lo:hi]
        source = target
        if base is not None:
            source = operand(kernel, flat(base[index])[lo:hi])
        job = Job(target, source, dtype_name(p), prepared, start)
        if kernel.TENSORS:
            joint_jobs.setdefault(kernel, []).append(job)
        else:
            kernel.move_all([job], scale)
    for kernel, jobs in joint_jobs.items():
        kernel.move_all(jobs, scale, rounding)
    for index, elements in contiguous_copies.items():
        write_back(vector.parameters[index], elements)


def move_steps(vector: Vector, steps: Sequence[Add]) -> None:
    """Take one step after the other in one pass over w.

    The result is rounded after each step, so the bits are those of separate passes.

    Raises ValueError as `Vector.make_preparer` does; the weights are unchanged then.
    """
    sums = [(vector.parts(step.terms, step.scale), step.scale) for step in steps]

    def prepare(kernel: kernels.Kernels, block: int, length: int) -> Any:
        return kernel.prepare_steps([(parts(block), scale) for parts, scale in sums], length)

    move(vector, prepare, 1.0)


def write(
    target: torch.Tensor, values: torch.Tensor, rounding: Rounding | None, start: int
) -> None:
    """Write values to a tensor, rounded up or down with probabilities that make the mean exact.

    Float32 values are written as they are.

    Args:
        target: 1-D, any of the dtypes of weights.
        values: float32, as many as the target has.
        rounding: seed and step of the shared stream; None: to nearest.
        start: index of the first element in the parameter vector, which chooses the random words.
    """
    if rounding is None or target.dtype == torch.float32:
        target.copy_(values)
        return
    kernel = kernels.current(target.device.type)
    kernel.draw(
        operand(kernel, target), operand(kernel, values), dtype_name(target), rounding, start
    )


def move_by_pieces(
    vector: Vector,
    terms: Sequence[Term],
    scale: float,
    rounding: Rounding | None,
    moments: Moments | None = None,
) -> None:
    """Move the weights with a buffer, which stochastic rounding and running averages need.

    Args:
        vector: the weights.
        terms: the sum.
        scale: multiplies the sum; not used with `moments`.
        rounding: rounds stochastically; None: to nearest.
        moments: running averages that turn the sum, a gradient, into a step; None: it is added.
    """
    if moments is None and all(kernels.current(device.type).TENSORS for device in vector.devices):
        # such kernels round stochastically themselves
        move(vector, vector.make_preparer(terms, scale), scale, rounding=rounding)
        return

    def change(kernel: kernels.Kernels, prepared: Any, start: int, stop: int) -> torch.Tensor:
        total = combine(kernel, prepared, start, stop)
        if moments is None:
            return total * float(np.float32(scale)) + 0.0
        return moments.change(total.to(moments.first.device), start)

    _by_pieces(vector, vector.make_preparer(terms, scale), change, rounding)


def move_scaled(vector: Vector, terms: Sequence[Term], scale: float, moments: Moments) -> None:
    """Move along directions whose entries are divided by the curvature that "hiso" has learnt.

    The curvature stays as it is.
    """

    def change(kernel: kernels.Kernels, prepared: Any, start: int, stop: int) -> torch.Tensor:
        divisor = moments.divisor(slice(start, stop), torch.float32)
        total = combine(kernel, prepared, start, stop).to(divisor.device)
        return total / divisor * float(np.float32(scale)) + 0.0

    _by_pieces(vector, vector.make_preparer(terms, scale), change, None)


def move_rebuilt(
    vector: Vector, steps: Sequence[Sequence[Term]], rule: Rule, rounding: Rounding | None
) -> None:
    """Apply the last of several steps, with running averages that are computed from these steps
    alone. A direction is generated again at each step that remembers it. The memory is that of a
    few pieces.
    """
    preparers = [vector.make_preparer(terms, 1.0) for terms in steps]

    def prepare(kernel: kernels.Kernels, block: int, length: int) -> Any:
        return [prepare_step(kernel, block, length) for prepare_step in preparers]

    def change(kernel: kernels.Kernels, prepared: Any, start: int, stop: int) -> torch.Tensor:
        moments = None
        for step in prepared:
            gradient = combine(kernel, step, start, stop)
            if moments is None:
                moments = Moments(
                    rule, torch.zeros_like(gradient), torch.zeros_like(gradient), len(steps)
                )
            moments.take(gradient, 0)
        assert moments is not None
        return moments.descent(slice(None), torch.float32)

    _by_pieces(vector, prepare, change, rounding)


def combine(kernel: kernels.Kernels, prepared: Any, start: int, stop: int) -> torch.Tensor:
    """Return a prepared sum over directions for the elements start to stop, as a tensor."""
    total = kernel.combine(prepared, start, stop)
    return total if isinstance(total, torch.Tensor) else torch.from_numpy(total)


def _by_pieces(
    vector: Vector,
    prepare: Prepare,
    change: Callable[[kernels.Kernels, Any, int, int], torch.Tensor],
    rounding: Rounding | None,
) -> None:
    """Set w = round(w + change(kernels, prepared, start, stop)), PIECE elements at a time."""
    for index, first, last, begin, kernel, prepared in vector.pieces(prepare):
        p = vector.parameters[index]
        elements = flat(p)
        for lo in range(first, last, PIECE):
            hi = min(lo + PIECE, last)
            start = begin + lo - first
            addend = change(kernel, prepared, start, start + hi - lo).to(p.device)
            write(elements[lo:hi], elements[lo:hi].float() + addend, rounding, start)
        write_back(p, elements)
